"""The records of a recording: typed values of what one line of JSON may say, and columns for what there is in masses.
Torch's names of operations and types are those of its own recorders."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES
from laggard.locate.medians import distinct
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


class StoppedLine(msgspec.Struct):
    """The rank's recording ends before the rank does: nothing more could be written, for the reason `why`."""

    rank: RankNumber
    why: str = ""


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


LINES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "rank": RankLine, "state": StateLine, "threads": ThreadsLine, "cpu_wait": CpuWaitLine, "digest": DigestLine,
    "environment": EnvironmentLine, "end": EndLine, "saw": SawLine, "left": LeftLine, "stopped": StoppedLine,
    "beat": BeatLine, "stacks": StacksLine, "findings": FindingsLine,
}  # fmt: skip
"""The records that are not timed, by kind."""


class Head(msgspec.Struct):
    """A recording's first line. `process`: who wrote it, as laggard.kit.processes has it."""

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


Table = dict[str, NDArray[Any]]
"""Columns of equal length. Unknown numbers are -1, unknown times nan."""

OTHER = PHASES.index("other")
PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}
OP_INDEX = {name: index for index, name in enumerate(OPS)}

STEP_COLUMNS = {
    "rank": np.int32,
    "step": np.int64,
    "start": np.float64,
    "end": np.float64,
    "own": np.int32,
    "work": np.float64,
}
SPAN_COLUMNS = {"rank": np.int32, "step": np.int64, "phase": np.int8, "start": np.float64, "end": np.float64}
COLLECTIVE_COLUMNS = {
    "rank": np.int32,
    "step": np.int64,
    "group": np.int32,
    "op": np.int8,
    "seq": np.int64,
    "bytes": np.int64,
    "peer": np.int32,
    "start": np.float64,
    "end": np.float64,
    "waited": np.float64,
}


@dataclasses.dataclass
class Columns:
    """The timed records of one part of a recording, built up chunk by chunk. `own` holds the own times by phase, and
    the time waited, of the steps that carry them; a step's `own` is its place there. `rejected` counts what was left
    out, by the reason. `group_names` is shared by all parts of a recording: a group's number is its place there."""

    group_names: dict[str, int]
    steps: list[Table] = dataclasses.field(default_factory=list)
    spans: list[Table] = dataclasses.field(default_factory=list)
    collectives: list[Table] = dataclasses.field(default_factory=list)
    own: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, records: Iterable[Record]) -> None:
        """Adds a chunk of step, span and collective records."""
        by_kind: dict[str, list[Record]] = {"step": [], "span": [], "collective": []}
        for record in records:
            by_kind[record.kind].append(record)
        self._add_steps(by_kind["step"])
        self._add_spans(by_kind["span"])
        self._add_collectives(by_kind["collective"])

    @property
    def count(self) -> int:
        return sum(len(table["rank"]) for table in (*self.steps, *self.spans, *self.collectives))

    def ranks(self) -> set[int]:
        return {
            int(rank) for table in (*self.steps, *self.spans, *self.collectives) for rank in distinct(table["rank"])
        }

    def _add_steps(self, records: list[Record]) -> None:
        if not records:
            return
        table = _bounds(records)
        table["own"] = np.array([self._keep_own(each) for each in records], np.int32)
        table["work"] = np.array([max(each.work or 0, 0) for each in records], np.float64)
        self.steps.append(self._valid(table, "step", table["step"] >= 0))

    def _keep_own(self, record: Record) -> int:
        if record.own is None or record.waited is None:
            return -1
        self.own.append((*(record.own.get(name, 0.0) for name in PHASES), record.waited))
        return len(self.own) - 1

    def _add_spans(self, records: list[Record]) -> None:
        if not records:
            return
        table = _bounds(records)
        table["phase"] = np.array([PHASE_INDEX.get(each.name or "", OTHER) for each in records], np.int8)
        self.spans.append(self._valid(table, "span", table["step"] >= 0))

    def _add_collectives(self, records: list[Record]) -> None:
        if not records:
            return
        names = self.group_names
        table = _bounds(records)
        issued = _times([each.issued for each in records])
        table["start"] = np.where(np.isnan(table["start"]), issued, table["start"])
        table["group"] = np.array([names.setdefault(each.group or "", len(names)) for each in records], np.int32)
        table["op"] = np.array([OP_INDEX.get(each.op or "", -1) for each in records], np.int8)
        table["seq"] = _numbers([each.seq for each in records])
        table["bytes"] = _numbers([each.bytes for each in records])
        table["peer"] = _numbers([each.peer for each in records]).astype(np.int32)
        waited = table["waited"] = _times([each.waited for each in records])
        negative = waited < 0
        self._reject("collective records that waited for less than nothing", negative)
        self.collectives.append(self._valid(_rows(table, ~negative), "collective", None, unfinished=True))

    def _valid(self, table: Table, kind: str, numbered: NDArray[np.bool_] | None, unfinished: bool = False) -> Table:
        """The rows that can be used. `unfinished`: whether a row may lack its end. `numbered`: which rows have a step,
        None where they need none."""
        begun = np.isfinite(table["start"])
        ended = np.isfinite(table["end"])
        backwards = table["end"] < table["start"]
        self._reject(f"{kind} records without a start", ~begun)
        self._reject(f"{kind} records that end before they start", backwards)
        usable = begun & ~backwards & (ended | unfinished)
        if numbered is not None:
            self._reject(f"{kind} records without a step", ~numbered)
            usable &= numbered
        return _rows(table, usable)

    def _reject(self, reason: str, rows: NDArray[np.bool_]) -> None:
        count = int(rows.sum())
        if count:
            self.rejected[reason] += count


def _bounds(records: Sequence[Record]) -> Table:
    return {
        "rank": np.array([each.rank for each in records], np.int32),
        "step": _numbers([each.step for each in records]),
        "start": _times([each.start for each in records]),
        "end": _times([each.end for each in records]),
    }


def _times(values: list[float | None]) -> NDArray[np.float64]:
    return np.array(values, np.float64)  # None becomes nan


def _numbers(values: list[int | None]) -> NDArray[np.int64]:
    return np.array([-1 if value is None else value for value in values], np.int64)


def _rows(table: Table, keep: NDArray[np.bool_]) -> Table:
    return table if keep.all() else {name: values[keep] for name, values in table.items()}


def concatenate(tables: Sequence[Table], columns: dict[str, Any]) -> Table:
    """The rows of all `tables`; without any, empty columns."""
    return {
        name: np.concatenate([table[name] for table in tables]) if tables else np.zeros(0, kind)
        for name, kind in columns.items()
    }


UNKNOWN = -1

_OPS_BY_NAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    **{name.replace("_", ""): name for name in OPS},
}
_SUFFIXES = re.compile(r"(_base|_oop|_single|_tensor|_into_tensor|_coalesced|_v|_barrier)+$")

BYTES_OF_TYPE = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2, "Int": 4, "UInt32": 4,
    "Float": 4, "Long": 8, "UInt64": 8, "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip


def op_place(name: str) -> int:
    """The place in OPS of what torch calls `_allgather_base`, `all_reduce_barrier` and so on; -1 where it is none."""
    bare = "barrier" if name.endswith("barrier") else _SUFFIXES.sub("", name.lstrip("_").lower())
    found = _OPS_BY_NAME.get(bare.replace("_", ""))
    return OPS.index(found) if found else UNKNOWN
