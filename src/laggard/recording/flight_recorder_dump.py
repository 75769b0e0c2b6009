"""One rank's Flight Recorder dump as values: its groups, how far it came in each, and its records as columns. Pure.

The format is that of torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (versions 2.0 to 2.10), the same in a pickle
and in JSON, but for what JSON leaves out or writes as text. Fields that are not read may hold anything.

A device is known to have begun what it has not finished only with TORCH_NCCL_ENABLE_TIMING. Backends other than NCCL's
note both times at once, when a collective is done (hooks/FlightRecorderHook.cpp), so that equal times tell nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.recording.records import BYTES_OF_TYPE, UNKNOWN, op_place

SUPPORTED_MAJOR = "2"

MAX_RECORDS = 200_000
"""The most records of a dump that are read, the newest; torch keeps 2,000 unless TORCH_FR_BUFFER_SIZE is set."""

MAX_GROUPS = 65_536
ANY_SOURCE = -2
"""The sender in a record of a receive from whichever rank sends first."""

MAX_MEMBERS = 1 << 20
_MAX_TENSORS, _MAX_DIMENSIONS = 4096, 64
_MAX_NUMBER = (1 << 62) - 1


class NoDump(ValueError):
    """A value that is no Flight Recorder dump, or of a version that is not known; the text says which."""


class DumpedGroup(NamedTuple):
    """A process group as one rank knows it: its name there, its description, and its members' global ranks, empty where
    the dump does not tell them (gloo's does not)."""

    name: str
    description: str
    members: tuple[int, ...]


class Status(NamedTuple):
    """The numbers of the last collectives that a rank enqueued in a group and that are done there; -1: none, or not
    known."""

    enqueued: int
    completed: int


class Records(NamedTuple):
    """E records of one rank, in the order in which they were enqueued."""

    group: NDArray[np.int32]  # [E]: place in Dump.groups
    op: NDArray[np.int8]  # [E]: place in OPS, -1 where it is none of them
    seq: NDArray[np.int64]  # [E]: the collective's number in its group; -1 where the record is of none
    size: NDArray[np.int64]  # [E]: bytes of its inputs or of its outputs, whichever are more; -1 where not known
    source: NDArray[np.int32]  # [E]: who sends, as a place in the group; -1 for a collective
    target: NDArray[np.int32]  # [E]: who receives, the same
    done: NDArray[np.bool_]  # [E]
    begun: NDArray[np.bool_]  # [E]: whether the dump says that the device began it, for which it needs times
    batch: NDArray[np.int64]  # [E]: of sends and receives, equal for those of a group that are launched as one; else -1


@dataclasses.dataclass(frozen=True)
class Dump:
    """The content of a rank's dump. `status` is by place in `groups`. `corrupt` counts the records that were left out,
    `reason` says what was wrong with the first. `wrapped`: whether the recorder had dropped older records. `timed`:
    whether it says what the device began. `miscounted`: the groups (places) whose collectives are counted together with
    batches of messages. `still_seconds`: for how long nothing had changed when the file was written, None where that is
    not known."""

    rank: int
    path: str
    groups: tuple[DumpedGroup, ...]
    status: dict[int, Status]
    records: Records
    corrupt: int
    reason: str
    wrapped: bool
    timed: bool = False
    miscounted: frozenset[int] = frozenset()
    still_seconds: float | None = None


def parse_dump(value: Any, rank: int, path: str, written: float | None = None) -> Dump:
    """The dump in `value`, as read from a pickle or from JSON. `written`: when its file was, in Unix time. Raises
    NoDump."""
    _check(value)
    groups = _Groups(value.get("pg_config"))
    listed = value.get("entries")
    listed = listed if isinstance(listed, list) else []
    rows, reasons = _rows(listed[-MAX_RECORDS:], groups)
    status = dict(_status(value.get("pg_status"), groups))
    first = listed[0] if listed else None
    older = isinstance(first, dict) and isinstance(number := first.get("record_id"), int) and number > 0
    return Dump(
        rank,
        path,
        tuple(groups.known),
        status,
        _columns(rows),
        len(reasons),
        next(iter(reasons), ""),
        older,
        timed=any(_is_timed(entry) for entry in listed if isinstance(entry, dict)),
        miscounted=frozenset(_miscounted(rows)),
        still_seconds=_still_seconds(listed, written),
    )


def _is_timed(entry: Mapping[str, Any]) -> bool:
    begun, done = entry.get("time_discovered_started_ns"), entry.get("time_discovered_completed_ns")
    return bool(begun) and begun != done


def _miscounted(rows: Sequence[Row]) -> Iterator[int]:
    """The groups in which a batch of messages has a collective's number."""
    for before, row in zip(rows, rows[1:], strict=False):
        if before.batch >= 0 and before.group == row.group and row.is_batch and row.seq >= 0:
            yield row.group


def _still_seconds(listed: Sequence[Any], written: float | None) -> float | None:
    """The seconds from the last time that the dump tells until its file was written; None where they make no sense."""
    times = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    dicts = (entry for entry in listed if isinstance(entry, dict))
    known = [value for entry in dicts for name in times if isinstance(value := entry.get(name), int) and value > 0]
    if written is None or not known:
        return None
    seconds = written - max(known) / 1e9
    return seconds if seconds >= 0.0 else None


def _check(value: Any) -> None:
    if not isinstance(value, dict) or not {"pg_config", "pg_status", "entries"} & value.keys():
        raise NoDump("no Flight Recorder dump: it has none of pg_config, pg_status and entries")
    version = value.get("version")
    if not isinstance(version, str) or version.split(".")[0] != SUPPORTED_MAJOR:
        said = repr(version)[:20] if isinstance(version, (str, int, float)) else "no version"
        raise NoDump(f"a Flight Recorder dump of version {said}: {SUPPORTED_MAJOR}.x is read")


class _Groups:
    """The groups of a dump, by name and by the number that they have in this process alone."""

    def __init__(self, config: Any) -> None:
        self.known: list[DumpedGroup] = []
        self.by_number: dict[int, int] = {}
        self._by_name: dict[tuple[str, str], int] = {}
        entries = config.values() if isinstance(config, dict) else ()
        for each in list(entries)[:MAX_GROUPS]:
            members = _members(each.get("ranks")) if isinstance(each, dict) else ()
            if members:  # gloo's recorder notes one group without a name and members, which is none
                self.place(str(each.get("name"))[:256], str(each.get("desc"))[:256], members)
        self.numbered = sorted(
            (place for place, group in enumerate(self.known) if group.name.isdecimal()),
            key=lambda place: int(self.known[place].name),
        )

    def place(self, name: str, description: str, members: tuple[int, ...] = ()) -> int:
        """The place in `known` of the group of that name and description, which is added where it is new."""
        key = name, description
        if key not in self._by_name:
            if len(self.known) >= MAX_GROUPS:
                raise ValueError("too many process groups")
            self._by_name[key] = len(self.known)
            self.known.append(DumpedGroup(name, description, members))
        return self._by_name[key]

    def of_number(self, number: int) -> int | None:
        """The group that has `number` in this process: as its records say; else, where torch numbered all names, the
        group that was made as the so manieth, since both count up."""
        if number in self.by_number:
            return self.by_number[number]
        if len(self.numbered) != len(self.known) or number >= len(self.numbered):
            return None
        agree = all(self.numbered[at] == place for at, place in self.by_number.items() if at < len(self.numbered))
        return self.numbered[number] if agree else None


def _members(text: Any) -> tuple[int, ...]:
    """The ranks in `[0, 1, 2]`, which is a text in a dump; empty where it is none."""
    if isinstance(text, str):
        parts: Iterable[Any] = text.strip("[] ").split(",")
    elif isinstance(text, (list, tuple)):
        parts = text
    else:
        return ()
    try:
        ranks = [int(part) for part in parts]
    except (TypeError, ValueError, OverflowError):
        return ()
    valid = len(ranks) <= MAX_MEMBERS and all(0 <= rank < MAX_MEMBERS for rank in ranks)
    return tuple(ranks) if valid else ()


def _status(value: Any, groups: _Groups) -> Iterator[tuple[int, Status]]:
    for key, each in list(value.items())[:MAX_GROUPS] if isinstance(value, dict) else ():
        place = groups.of_number(int(key)) if isinstance(key, str) and key.isdecimal() and len(key) < 10 else None
        if place is not None and isinstance(each, dict):
            enqueued, completed = (_number(each.get(f"last_{name}_collective")) for name in ("enqueued", "completed"))
            yield place, Status(enqueued, completed)


def _number(value: Any) -> int:
    """A number that JSON's writer puts into a text; -1 where it is none."""
    try:
        number = int(value) if isinstance(value, (int, str)) and len(str(value)) < 20 else UNKNOWN
    except ValueError:
        return UNKNOWN
    return number if 0 <= number <= _MAX_NUMBER else UNKNOWN


class Row(NamedTuple):
    """A row of Records. `is_batch`: whether it ends a batch of messages, which Records does not tell."""

    group: int
    op: int
    seq: int
    size: int
    source: int
    target: int
    done: bool
    begun: bool
    batch: int
    is_batch: bool = False


def _rows(listed: list[Any], groups: _Groups) -> tuple[list[Row], list[str]]:
    """The records, and for each that is none the reason."""
    rows: list[Row] = []
    reasons: list[str] = []
    for place, entry in enumerate(listed):
        try:
            rows.append(_row(entry, groups))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            lacks = isinstance(error, KeyError)
            reasons.append(f"record {place + 1}: " + (f"no {error.args[0]}" if lacks else str(error)[:80]))
    return rows, reasons


def _row(entry: Any, groups: _Groups) -> Row:
    if type(entry) is not dict:
        raise TypeError("no dictionary")
    name, description = entry["process_group"]
    place = groups.place(_text(name), _text(description))
    groups.by_number.setdefault(_int(entry.get("pg_id", 0)), place)
    backend, _, op = _text(entry["profiling_name"]).partition(":")
    op, _, ends = op.partition(" ")
    source, target = _ends(op, ends)
    seq = _int(entry["collective_seq_id"])
    is_batch = op == "coalesced"
    if source != UNKNOWN or entry.get("is_p2p") is True:  # a batch of messages ends with a record of its own
        seq = UNKNOWN
    state = _text(entry["state"])
    # NCCL retires a collective that timed out, too. For other backends retiring may be all that is noted.
    done = state == "completed" or (not backend.startswith("nccl") and entry.get("retired") is True)
    begun = state == "started" or bool(entry.get("time_discovered_started_ns"))
    batch = _number(entry.get("p2p_seq_id")) if source >= 0 else UNKNOWN
    return Row(place, op_place(op), seq, _size(entry), source, target, done, begun, batch, is_batch)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a name that is no text")
    return value[:256]


def _int(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise TypeError("a number that is none")
    return value


def _ends(op: str, text: str) -> tuple[int, int]:
    """The sender and the receiver in `send 0->1` and `recv 1<-0`, as places in the group. `recv 1<-?`: from any."""
    match = re.fullmatch(r"(\d{1,7})(->|<-)(\d{1,7}|\?)", text) if op in ("send", "recv") else None
    if match is not None and match[3] == "?":
        return ANY_SOURCE, int(match[1])
    if match is None:
        if op in ("send", "recv"):
            raise ValueError("a send or receive without its peer")
        return UNKNOWN, UNKNOWN
    one, other = int(match[1]), int(match[3])
    return (one, other) if match[2] == "->" else (other, one)


def _size(entry: dict[str, Any]) -> int:
    sizes = (_bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")) for side in ("input", "output"))
    return max(sizes)


def _bytes(sizes: Any, types: Any) -> int:
    """The bytes of tensors of those sizes; -1 where that is not known."""
    if not isinstance(sizes, (list, tuple)) or not isinstance(types, (list, tuple)) or len(sizes) > _MAX_TENSORS:
        return UNKNOWN
    if not sizes or len(types) not in (1, len(sizes)):
        return UNKNOWN
    total = 0
    for place, shape in enumerate(sizes):
        width = BYTES_OF_TYPE.get(kind) if isinstance(kind := types[place % len(types)], str) else None
        if width is None or not isinstance(shape, (list, tuple)) or len(shape) > _MAX_DIMENSIONS:
            return UNKNOWN
        for length in shape:
            if type(length) is not int or length < 0:
                return UNKNOWN
            width = min(width * length, _MAX_NUMBER)
        total = min(total + width, _MAX_NUMBER)
    return total


def _columns(rows: list[Row]) -> Records:
    kinds = (np.int32, np.int8, np.int64, np.int64, np.int32, np.int32, np.bool_, np.bool_, np.int64)
    columns: list[Any] = list(zip(*(row[: len(kinds)] for row in rows), strict=True)) if rows else [()] * len(kinds)
    return Records(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
