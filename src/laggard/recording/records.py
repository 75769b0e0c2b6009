"""The records of a recording as typed values: what one line of JSON may say."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from laggard.model import RankEnd
from laggard.stacks.sampled import SampledError
from laggard.wire.ranks import BeatRow, CpuWait, InFlight

MAX_RANKS = 1 << 20
"""A rank number beyond is no rank's: a number in a file must not decide how much memory is used."""

RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
StepNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Seconds = Annotated[float, msgspec.Meta(gt=-1e12, lt=1e12)]
Duration = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]

TIMED_KINDS = ("collective", "span", "step")
"""The kinds that a recording has in masses; they are read into columns."""


class Record(msgspec.Struct, gc=False):
    """Any record. Of the kinds that are not in TIMED_KINDS only `kind` and `rank` are read here. Times in seconds on
    the rank's own clock."""

    kind: str = ""
    rank: RankNumber | None = None
    step: StepNumber | None = None
    start: Seconds | None = None
    end: Seconds | None = None
    name: str | None = None
    group: str | None = None
    op: str | None = None
    seq: Count | None = None
    bytes: Count | None = None
    peer: RankNumber | None = None
    issued: Seconds | None = None
    waited: Seconds | None = None
    own: dict[str, Seconds] | None = None
    work: Count | None = None


decode_record = msgspec.json.Decoder(Record).decode


class Group(msgspec.Struct):
    """A process group as a rank's line declares it."""

    role: str | None = None
    ranks: list[RankNumber] | None = None


class RankLine(msgspec.Struct):
    """The facts that a rank's line says of it. `position` is the rank's index in its group of each role."""

    rank: RankNumber
    node: str | None = None
    gpu: str | None = None
    attempt: Count | None = None
    world_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)] | None = None
    position: dict[str, int] | None = None
    groups: dict[str, Group] | None = None
    unix_minus_clock: Seconds | None = None  # what converts the rank's clock to Unix time
    facts: dict[str, Any] | None = None


class EndLine(msgspec.Struct):
    """A rank's last line. `exit_code` and what follows stands in that of a rank that Python left with another status
    than 0; `at_seconds` is on the rank's own clock."""

    rank: RankNumber
    lost: Count | None = None
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    at_seconds: Seconds | None = None
    exception: str | None = None
    others_failed: bool | None = None


class StateLine(msgspec.Struct):
    """The state of a rank's process, as `laggard locate --record` writes it."""

    rank: RankNumber
    state: str
    phase: str | None = None
    stopped: bool | None = None
    in_flight: InFlight | None = None
    beat: BeatRow | None = None
    asked_seconds_ago: Seconds | None = None
    ended: RankEnd | None = None  # `end` is a time in a recording
    cpu_wait: CpuWait | None = None


class BeatLine(msgspec.Struct):
    """The place of a rank that had finished no step for `quiet_seconds`, and the time at which the next such line was
    to follow (`beat.interval_seconds`). `last_step`: the last that it had finished."""

    rank: RankNumber
    quiet_seconds: Duration
    beat: BeatRow
    last_step: StepNumber | None = None
    phase: str | None = None
    in_flight: InFlight | None = None


class SawLine(msgspec.Struct):
    """The observation of rank `of` by another rank of the machine: that its process runs, is stopped or is gone, and
    where it stood then. `rank`: who saw it. `signal` or `exit_code`: the kernel's word about one that is gone."""

    rank: RankNumber
    of: RankNumber
    state: str
    at_unix: Seconds
    signal: str = ""
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    phase: str | None = None
    in_flight: InFlight | None = None


class LeftLine(msgspec.Struct):
    """The rank left torch.distributed in order: however its process ended, it harmed nobody then."""

    rank: RankNumber
    at_unix: Seconds


class ThreadsLine(msgspec.Struct):
    """The threads beside a rank's training, as they ran of late."""

    rank: RankNumber
    own_threads: dict[str, Any]


class WaitedForCpu(msgspec.Struct):
    """The CPU time of all threads of a rank in the last `seconds`, as CpuWait has it."""

    seconds: Duration
    running_seconds: Duration
    queued_seconds: Duration
    throttled_seconds: Duration = 0.0


class CpuWaitLine(msgspec.Struct):
    """The time for which the rank's threads waited for a CPU of late, as the hooks write it."""

    rank: RankNumber
    cpu_wait: WaitedForCpu


class DigestLine(msgspec.Struct):
    """The digest of a rank's parameters after a step: 16 hexadecimal digits. `skipped`: why it makes none."""

    rank: RankNumber
    step: StepNumber | None = None
    value: str = ""
    every: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1
    skipped: str = ""


class StacksLine(msgspec.Struct):
    """Stacks of the rank's process: a document of laggard.stacks.sampled."""

    rank: RankNumber
    stacks: msgspec.Raw


class EnvironmentLine(msgspec.Struct):
    """What surrounds a rank's training, as its facts of those names."""

    rank: RankNumber
    environment: dict[str, Any] = {}
    deepspeed: dict[str, Any] = {}


class FindingsLine(msgspec.Struct):
    """The findings of a machine, as NodeFindings has them. A recording may have their codes alone."""

    node: str
    codes: tuple[str, ...]
    of_gpus: dict[str, tuple[str, ...]] = {}
    gpus: tuple[str, ...] = ()


class Head(msgspec.Struct):
    """A recording's first line. `process`: who wrote it, as laggard.processes.identity has it."""

    laggard_recording: int
    job_id: str | None = None
    ends: bool | None = None
    beats: bool | None = None
    owner: int | None = None
    process: dict[str, Any] | None = None


def why_invalid(error: Exception) -> str:
    """One line that says what is wrong with a line of a recording."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).replace("\n", " ")[:160]


INVALID: tuple[type[Exception], ...] = (msgspec.MsgspecError, ValueError, RecursionError, SampledError)
"""The exceptions that decoding a line raises where it is no record."""


def decode_as(line: bytes, kind: type[Any]) -> Any:
    return msgspec.json.decode(line, type=kind)
