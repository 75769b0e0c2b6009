"""The values that laggard's parts exchange. They are immutable, and have the field names of
docs/development/contracts.md."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from laggard.kit.limits import MAX_TEXT, Clock, CountOrNone, Seconds, Text

MAX_FINDINGS = 512
"""The most findings of one report. A report with more, and with longer texts, is refused as a whole."""

MAX_DEVICE = MAX_TEXT
MAX_SUMMARY = 4096
"""Characters of a finding."""

REPORT_SCHEMA = "laggard.report/1"
LOCATION_SCHEMA = "laggard.location/1"


class Verdict(str, enum.Enum):
    """The conclusion of a probe or a command. `unknown` is never `ok`."""

    OK = "ok"
    FAIL = "fail"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


EXIT_CODES = {Verdict.OK: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 2, Verdict.SKIPPED: 2}
"""Exit status of every command that judges. 2 where all was skipped: nothing checked is no answer."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the worst of several verdicts: fail before unknown before ok. All skipped, or none: skipped."""
    present = set(verdicts)
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.OK):
        if verdict in present:
            return verdict
    return Verdict.SKIPPED


class Severity(str, enum.Enum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


SEVERITIES = tuple(Severity)
"""The gravest first."""


class Fix(msgspec.Struct, frozen=True):
    """The things that a person should do. The commands are for people: laggard never runs them."""

    text: str
    commands: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with hardware, software or configuration, with its evidence and a fix. `doc` is the path
    of the code's page in the repository, or its address (LAGGARD_RUNBOOKS). `action`, for programs: REBOOT, RESET (the
    device), REPLACE (the part), OPERATOR (look) or USER (the job's owner has to change something); empty from an agent
    that does not know it."""

    code: Text
    severity: Severity
    device: Text
    summary: Annotated[str, Meta(max_length=MAX_SUMMARY)]
    evidence: dict[str, Any]
    fix: Fix
    doc: Text
    action: Text = ""


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of one probe. `reason` is for people, and no program reads it back."""

    name: str
    verdict: Verdict
    reason: str
    elapsed_seconds: float
    findings: tuple[int, ...] = ()  # places in Report.findings
    unknown: str = ""  # what it could not judge, also of a probe that failed; empty: it judged everything


class Report(msgspec.Struct, frozen=True):
    """The findings of one node's probes (`laggard.report/1`)."""

    verdict: Verdict
    node: Text
    elapsed_seconds: float
    probes: tuple[ProbeResult, ...]
    findings: Annotated[tuple[Finding, ...], Meta(max_length=MAX_FINDINGS)]
    facts: dict[str, Any]
    schema: str = REPORT_SCHEMA


MAX_NAMED_RANKS = 64
"""The most victims and machines that a culprit lists, and ranks that a note does."""


class RankEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a rank's process: what is not known is left out.

    It ended at `at_seconds` (Unix time on its node's clock) or at most `uncertain_seconds` before. `exit_code` and
    `signal` (`SIGKILL`) are the kernel's word, or Python's own. `exception` is the type of the one that nobody caught,
    and `others_failed` whether such a one comes when other ranks are gone. `cause` (out_of_memory, gpu_error,
    memory_error, segfault) follows from the kernel's own words, `kernel`.
    """

    at_seconds: Clock
    uncertain_seconds: Seconds = 0.0
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Text = ""
    exception: Text = ""
    others_failed: bool = False
    cause: Text = ""
    kernel: Text = ""


class CpuNeighbour(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that took `seconds` of CPU time on a rank's cores. `command` is left out where the process is neither
    root's nor of the rank's user. Whose it is may be hidden: then `owner` and `pid` are HIDDEN."""

    pid: CountOrNone
    owner: CountOrNone
    seconds: Clock
    command: Text = ""


HIDDEN = -1
"""The stand-in for a number that the reader may not see."""


class CulpritStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place in the code of a culprit, beside that of a rank that waits for it or does the same work. `text`: one
    line; `place`: the function alone, in a few words; `rank`: whose stack it is; `frames`: the innermost first, each as
    `function (file:line)`; `differing`: how many of them, from the innermost on, are not on the peer's; `peer`: the
    other rank, with its `peer_frames`. `only_here`: most of the rank's samples are in one function of the user's own
    code, and nearly none of its peers'."""

    text: str
    place: str
    rank: int
    frames: tuple[str, ...]
    differing: int = 0
    peer: int | None = None
    peer_frames: tuple[str, ...] = ()
    only_here: bool = False


class Culprit(msgspec.Struct, frozen=True):
    """A rank, machine or link that makes others wait. Ratios: see docs/development/contracts.md,
    `laggard.location/1`."""

    kind: str  # slow_compute, slow_host, slow_input, slow_link, uneven_work, busy_threads, hung, dead, corrupt
    ranks: tuple[int, ...]
    node: str | None = None
    gpu: str | None = None
    device: str | None = None
    link: tuple[dict[str, str], dict[str, str]] | None = None
    phase: str | None = None
    group: str | None = None
    slowdown_ratio: float | None = None
    recoverable_ratio: float | None = None
    since_step: int | None = None
    persistence: str = "persistent"  # persistent, transient, intermittent
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    advice: str = ""  # what to do, or to look at first
    end: RankEnd | None = None  # of a dead rank
    stopped: bool = False  # a hung rank's process, by a signal or a debugger
    silent: bool = False  # of a hung rank, by the ranks' recordings: none of its threads ran until the job was killed
    device_stopped: bool = False  # of hung ranks: by dumps, the GPU of one of them completes nothing any more
    nodes: tuple[str, ...] = ()  # of a slow link that lies between or among several machines: these
    neighbours: tuple[CpuNeighbour, ...] | None = None  # of a slow host: whom its evidence names; None: not known
    stack: CulpritStack | None = None  # where in the code, as far as its process told

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that it is about: its own, or those between or among which a slow link lies."""
        ends = (end.get("node") for end in self.link or ())
        return tuple(dict.fromkeys(filter(None, (self.node, *ends, *self.nodes))))

    @property
    def is_in_the_code(self) -> bool:
        """Whether the line of code that it alone is at explains it, and no device or file system does. A busy processor
        makes all of its code slow, and no line its own."""
        of_busy = all(code.startswith("CPU_") for code in self.findings) and not self.neighbours
        return self.stack is not None and self.stack.only_here and of_busy

    @property
    def is_within_machine(self) -> bool:
        """Whether it is a slow link that begins and ends on one machine, where no network is."""
        first, last = (end.get("node") for end in self.link or ({}, {}))
        return first is not None and first == last


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a verdict on a job leaves open, or that its reader should know. The kinds stand in
    docs/development/contracts.md."""

    kind: str
    text: str
    ranks: tuple[int, ...] = ()
    node: str | None = None


class Window(msgspec.Struct, frozen=True):
    """The steps that a verdict is based on. `step_seconds`: how long they take on average without the stalls among
    them, which `recoverable_ratio` leaves out; null where there are none."""

    first_step: int | None = None
    last_step: int | None = None
    seconds: float = 0.0
    step_seconds: float | None = None


class Location(msgspec.Struct, frozen=True):
    """The verdict on a job: which ranks, machines or links are slow or hung (`laggard.location/1`). `owner`: the uid of
    the job's user, None where it is not known, as in a recording of the hooks."""

    verdict: Verdict
    job_id: str | None
    world_size: int
    ranks_seen: int
    window: Window
    slowdown_ratio: float | None
    culprits: tuple[Culprit, ...]
    notes: tuple[Note, ...]
    schema: str = LOCATION_SCHEMA
    owner: int | None = None


class JobKey(NamedTuple):
    """The name of a job among all users' jobs: its own is unique for its owner only, and two users may both call their
    job `test`."""

    owner: int
    job_id: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.job_id}"

    @classmethod
    def parse(cls, text: str) -> JobKey | None:
        """The key that `text` is, as in `1000:train`. None where it is a job's name alone. A job whose own name has
        this form is found by its key alone, so that no job can pass for another user's."""
        owner, separator, name = text.partition(":")
        return cls(int(owner), name) if separator and name and re.fullmatch("[0-9]{1,10}", owner) else None
