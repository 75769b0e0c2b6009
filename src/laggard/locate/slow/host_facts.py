"""Explains slow ranks by what their host does: their threads wait for a CPU, threads of their own process hold
Python's lock, or Python collects garbage, and those of their peers do not. Pure.

Both count beside the middle of the ranks that are not slow: what all have makes none of them slower than the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

from msgspec import structs

from laggard.kit.words import printable_line, seconds_text
from laggard.locate.job_timings import JobTimings, OwnThreads
from laggard.locate.medians import middle
from laggard.locate.shares import ALIKE, HALF
from laggard.model import HIDDEN, CpuNeighbour, Culprit
from laggard.wire.ranks import CpuWait

_MAX_NAMED: Final = 3
_MAX_COMMAND_CHARACTERS: Final = 32
_KINDS: Final = ("slow_compute", "slow_host", "slow_input")

WAKE_DELAY_SECONDS: Final = 0.002
"""The delay, beyond the peers', with which a sleeping thread wakes where busy threads are the cause: Python's lock is
handed over after 5 ms at the earliest where somebody computes (sys.getswitchinterval)."""

NOT_KNOWN = "whether its threads waited for a CPU is not known"


class _Missed(NamedTuple):
    """The CPU time that threads had and that they missed, in seconds for each second that they were watched."""

    running: float = 0.0
    queued: float = 0.0
    throttled: float = 0.0
    stolen: float = 0.0

    @classmethod
    def of(cls, wait: CpuWait) -> _Missed:
        times = (wait.running_seconds, wait.queued_seconds, wait.throttled_seconds, wait.stolen_seconds)
        return cls(*(each / wait.seconds if wait.seconds > 0 else 0.0 for each in times))

    @property
    def total(self) -> float:
        """The kernel counts what a quota holds back as time in the run queue, too."""
        return max(self.queued, self.throttled) + self.stolen

    def beyond(self, usual: _Missed) -> float:
        """What the threads missed beyond what they had missed as their peers' do at the same work (`usual`)."""
        return self.total - usual.total * self.running / usual.running if usual.running > 0 else self.total


class _Hosts:
    """What the hosts of a job's ranks do, beside the middle of those that are not `slow`."""

    def __init__(self, timings: JobTimings, slow: Set[int]) -> None:
        ranks = timings.ranks.tolist()
        self._timings = timings
        self.waits = {rank: state.cpu_wait for rank, state in zip(ranks, timings.states, strict=True)}
        self._threads = dict(zip(ranks, timings.own_threads, strict=True)) if timings.own_threads else {}
        missed = [_Missed.of(wait) for rank, wait in self.waits.items() if wait and rank not in slow]
        self._usual = _Missed(*map(middle, zip(*missed, strict=True))) if missed else None
        calm = [each for rank, each in self._threads.items() if each and rank not in slow]
        busy, late, collecting = ([each[place] for each in calm] or [0.0] for place in (0, 1, 3))
        self._calm = OwnThreads(middle(busy), middle(late), (), middle(collecting))

    def explained(self, culprit: Culprit) -> Culprit:
        if culprit.kind not in _KINDS:
            return culprit
        waits = [wait for rank in culprit.ranks if (wait := self.waits[rank])]
        states = (self._timings.states[self._timings.column_of[rank]].state for rank in culprit.ranks)
        if waits:
            worst = max(waits, key=lambda wait: _Missed.of(wait).total)
            culprit = self.without_cpu(culprit, worst) or culprit
        elif self._timings.live and "running" in states:
            culprit = structs.replace(culprit, evidence=(*culprit.evidence, NOT_KNOWN))
        return self._without_lock(culprit)

    def without_cpu(self, culprit: Culprit, wait: CpuWait) -> Culprit | None:
        """The culprit as a slow host, where the want of a CPU is what makes its threads slower than their peers'. What
        they missed beyond them is half of what it costs, and of what they missed, and more than ALIKE of the time."""
        missed = _Missed.of(wait)
        least = max(HALF * (culprit.recoverable_ratio or 0.0), HALF * missed.total, ALIKE)
        if missed.beyond(self._usual or _Missed()) < least:
            return None
        neighbours = () if _by_others(wait) else wait.neighbours[:_MAX_NAMED]
        evidence = (_cpu_text(wait, self._usual, neighbours), *culprit.evidence)
        return structs.replace(culprit, kind="slow_host", evidence=evidence, neighbours=neighbours)

    def _without_lock(self, culprit: Culprit) -> Culprit:
        """The culprit as one that its own process holds up, where those of all of its ranks do: by threads, or by the
        garbage collector, if that took half of what the culprit costs more than the peers' did."""
        threads = [each for rank in culprit.ranks if (each := self._threads.get(rank))]
        least = self._calm.collecting + HALF * (culprit.recoverable_ratio or 1.0)
        collecting = [each for each in threads if each.collecting >= least]
        late, busy = self._calm.late_seconds + WAKE_DELAY_SECONDS, self._calm.busy + ALIKE
        holding = [each for each in threads if each.busy > busy and each.late_seconds >= late]
        if len(collecting) == len(culprit.ranks):
            kind, why = "uneven_work", _collecting_text(collecting[0], self._calm)
        elif len(holding) == len(culprit.ranks):
            kind, why = "busy_threads", _threads_text(max(holding, key=lambda each: each.busy), self._calm)
        else:
            return culprit
        evidence = (why, *culprit.evidence)
        return structs.replace(culprit, kind=kind, node=None, gpu=None, neighbours=None, evidence=evidence)


def with_host_facts(timings: JobTimings, culprits: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """`culprits`; of kind slow_host those whose threads wait for a CPU, with how long as their first evidence; of kind
    busy_threads those that threads of their own process hold up, with the threads' names: no machine is at fault."""
    hosts = _Hosts(timings, {rank for culprit in culprits for rank in culprit.ranks})
    return tuple(map(hosts.explained, culprits))


def as_slow_host(timings: JobTimings, rank: int, culprit: Culprit) -> Culprit | None:
    """The culprit as it is where `rank` is what is slow of it, by its threads' want of a CPU; None where they do not
    wait for one longer than those of the ranks that have no part in it."""
    all_ranks = {*culprit.ranks, *culprit.victims}
    hosts = _Hosts(timings, all_ranks)
    wait = hosts.waits[rank]
    found = hosts.without_cpu(culprit, wait) if wait else None
    if found is None:
        return None
    node, victims = timings.nodes[timings.column_of[rank]], tuple(sorted(all_ranks - {rank}))
    return structs.replace(
        found, ranks=(rank,), node=node, phase=None, group=None, link=None, nodes=(), victims=victims
    )


def are_starved(timings: JobTimings, ranks: Iterable[int]) -> bool:
    """Whether the threads of all of these wait for a CPU as long as they run. Where nobody is left to compare with,
    less tells nothing: healthy ranks that fill a machine miss a tenth of the time, and most transfers are as ever."""
    waits = [timings.states[timings.column_of[rank]].cpu_wait for rank in ranks]
    return all(wait is not None and _Missed.of(wait).total >= _Missed.of(wait).running for wait in waits)


def _is_throttled(wait: CpuWait) -> bool:
    return wait.throttled_seconds > ALIKE * wait.seconds


def _by_others(wait: CpuWait) -> bool:
    """Whether a quota or a hypervisor held the threads up, and no process of this machine."""
    return _is_throttled(wait) or wait.stolen_seconds > wait.queued_seconds


def _cpu_text(wait: CpuWait, usual: _Missed | None, neighbours: Sequence[CpuNeighbour]) -> str:
    """The evidence of what held the threads up, for how long, and who."""
    of = f"of {seconds_text(wait.seconds)}"
    if _is_throttled(wait):
        return f"its cgroup's CPU quota held it back for {seconds_text(wait.throttled_seconds)} {of}"
    if _by_others(wait):
        taken = seconds_text(wait.stolen_seconds)
        return f"the hypervisor ran other machines on its cores for about {taken} {of} that its threads wanted (steal)"
    peers = f", its peers' for {seconds_text(usual.queued * wait.seconds)}" if usual else ""
    waited = f"{seconds_text(wait.queued_seconds)} in {seconds_text(wait.seconds)}"
    return f"its threads together waited for a CPU for {waited}{peers}{neighbours_text(neighbours)}"


def neighbours_text(neighbours: Sequence[CpuNeighbour]) -> str:
    """The end of the evidence that names them."""
    who = " and ".join(map(_neighbour, neighbours)) or "others run"
    return f": {who} on its cores"


def _neighbour(each: CpuNeighbour) -> str:
    """`process 4711 (stress) of user 0 ran 3.1 s`"""
    if each.owner == HIDDEN:
        return f"another user's process ran {seconds_text(each.seconds)}"
    command = f" ({printable_line(each.command, _MAX_COMMAND_CHARACTERS)})" if each.command else ""
    return f"process {each.pid}{command} of user {each.owner} ran {seconds_text(each.seconds)}"


def _collecting_text(found: OwnThreads, usual: OwnThreads) -> str:
    return (
        f"Python collected garbage for {seconds_text(found.collecting)} of each second in its process, in its peers' "
        f"for {seconds_text(usual.collecting)}"
    )


def _threads_text(found: OwnThreads, usual: OwnThreads) -> str:
    names = f" ({', '.join(found.names)})" if found.names else ""
    return (
        f"threads of its own process{names} ran for {found.busy:.2f} s of each second beside the training, its peers' "
        f"for {usual.busy:.2f} s, and Python's lock (the GIL) came {seconds_text(found.late_seconds)} late, its peers' "
        f"{seconds_text(usual.late_seconds)}"
    )
