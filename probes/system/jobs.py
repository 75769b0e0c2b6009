"""JOBS_FAIL_AT_ONCE: on this node one job after the other fails within a minute of its start, and none of them runs.

A node on which each job dies at once is free again at once, and gets the next one: it takes most jobs of a queue,
whatever its probes say. SLURM's prolog and epilog write down when jobs begin and how they end (deploy/slurm/gate.sh).

A user's broken program does so as well, on whichever node is free, again and again: all that one user runs counts once.
That several users in a row come to a healthy node with such programs is a power of the share of users who have one:
one in ten, as long as nobody knows better, makes three a chance in a thousand. A collector does know, and holds the
drain back where jobs of so many users end so on other nodes, too (collector/fleet.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from laggard.kit.environment import ENV_GATE_JOBS
from laggard.model import Finding
from laggard.probes.errors import NotApplicable
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.probe import KERNEL, Count, Fact, NotNegative, Probe, Thresholds, say

RECORD: Final = "/run/laggard/gate-jobs"
WINDOW_SECONDS: Final = 3600.0
"""How far failures of one row may lie apart, and how far back the facts go."""
CLEANED_SECONDS: Final = 60.0
"""The time in which the site's epilog cleans up after a job: PrologEpilogTimeout of deploy/slurm/slurm.conf.snippet."""
_MAX_USERS: Final = 64
_FAULTS: Final = frozenset((4, 6, 7, 8, 11))
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: by the program's own doing. Others end a job from outside: scancel, the
time limit, preemption."""


class JobsThresholds(Thresholds, frozen=True):
    least_users: Count = 3
    """The users whose jobs fail in a row."""

    quick_seconds: NotNegative = 60.0
    """Within this time of its start a job fails at once: it loads its libraries, and starts its GPUs."""


class RecordedJob(NamedTuple):
    """A job on this node, in seconds since boot; `started` None: it was before the record, `ended` None: it runs.
    `code` and `signal`: how its script ended."""

    user: int
    started: float | None
    ended: float | None = None
    code: int = 0
    signal: int = 0

    @property
    def failed(self) -> bool:
        from_outside = self.code in (129, 130, 137, 143)  # a shell's word for a signal of that kind
        return self.signal in _FAULTS or (self.code != 0 and not self.signal and not from_outside)

    def ran(self, now: float, quick_seconds: float) -> bool:
        """Whether it did well, or lasted."""
        well = self.ended is not None and self.code == self.signal == 0
        lasted = self.started is not None and (now if self.ended is None else self.ended) - self.started > quick_seconds
        return well or lasted


def check(host: Host, thresholds: JobsThresholds) -> Iterator[Finding | Fact]:
    text = host.read_if_present(host.variables().get(ENV_GATE_JOBS) or RECORD)
    if not text:
        raise NotApplicable("no prolog of SLURM tells of jobs")
    now, jobs = read_uptime(host), parse_record(text)
    recent = [it for it in jobs if now - (now if it.ended is None else it.ended) < WINDOW_SECONDS]
    quick = thresholds.quick_seconds
    users = {
        "failed": {it.user for it in recent if it.failed and not it.ran(now, quick)},
        "ran": {it.user for it in recent if it.ran(now, quick)},
        "living": {it.user for it in jobs if it.ended is None},
        "ended": {it.user for it in jobs if it.ended is not None and now - it.ended < CLEANED_SECONDS},
    }
    yield Fact("users", {name: sorted(them)[:_MAX_USERS] for name, them in users.items()})
    row = failing_row(jobs, now, quick)
    if len({it.user for it in row}) >= thresholds.least_users:
        yield _finding(row, host.boot_time(now))


def parse_record(text: str) -> list[RecordedJob]:
    """The jobs, those that ended first in the order of their ends. A line that cannot be read tells of none."""
    living: dict[str, RecordedJob] = {}
    over: list[RecordedJob] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or not all(word.isdecimal() for word in words[1:4]):
            continue
        at, job, user = int(words[1]) / 100, words[2], int(words[3])
        if words[0] == "start":
            living[job] = RecordedJob(user, at)
        elif words[0] == "end":
            code, _, signal = (words[4] if len(words) > 4 else "").partition(":")
            told = code.isdecimal() and signal.isdecimal()
            before = living.pop(job, RecordedJob(user, None))
            over += [before._replace(ended=at, code=int(code), signal=int(signal))] if told else []
    return [*over, *living.values()]


def failing_row(jobs: Iterable[RecordedJob], now: float, quick_seconds: float) -> Sequence[RecordedJob]:
    """The last failures at once. A job that began after the first of them and ran ends the row: the node can run
    jobs."""
    row: list[RecordedJob] = []
    for job in jobs:
        if job.ran(now, quick_seconds):
            if row and (job.started is None or job.started >= (row[0].started or 0.0)):
                row = []
        elif job.failed and job.started is not None:
            row = [it for it in row if (job.ended or 0.0) - (it.ended or 0.0) < WINDOW_SECONDS] + [job]
    return row


def _finding(row: Sequence[RecordedJob], boot_time: float | None) -> Finding:
    users = {it.user for it in row}
    longest = max((it.ended or 0.0) - (it.started or 0.0) for it in row)
    last = max(it.ended or 0.0 for it in row)
    evidence = {
        "users": sorted(users)[:_MAX_USERS],
        "jobs": len(row),
        "longest_seconds": round(longest, 1),
        "last_at": None if boot_time is None else boot_time + last,
    }
    return say("system", "jobs", "jobs", evidence, users=len(users), count=len(row), longest=f"{longest:.0f}")


PROBE: Final = Probe("jobs", check, JobsThresholds(), group=KERNEL)
