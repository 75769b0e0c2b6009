"""The entries of torch's Flight Recorder on each collective, to find those that no Python call made. JSON only, never
pickle."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from laggard.trainer_hooks.collectives.flight_recorder import dump_functions, nccl_entries_are_safe

_BYTES: Final = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8,
    "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
_OPS: Final = (
    ("reduce_scatter", "reduce_scatter"),
    ("all_reduce", "all_reduce"),
    ("allreduce", "all_reduce"),
    ("all_gather", "all_gather"),
    ("allgather", "all_gather"),
    ("all_to_all", "all_to_all"),
    ("alltoall", "all_to_all"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)

_BATCH: Final = ":coalesced"  # NCCL's entry of a batch as a whole; Python alone makes batches, and the hooks see those


class RecordedCollective(NamedTuple):
    """A collective as the Flight Recorder or a hook recorded it: its operation by laggard's name, its size in bytes."""

    op: str
    size: int


class GroupEntries(NamedTuple):
    """The entries of the Flight Recorder on one group since a time. `complete`: nothing since then was overwritten."""

    collectives: list[RecordedCollective]
    complete: bool


def read_entries(group: str, backends: Iterable[str], since_ns: int) -> GroupEntries | None:
    """Returns the collectives of the group that were launched at or after `since_ns`, Unix time, in order, without send
    and recv. `backends`: the names of the group's. None where torch keeps none (the Flight Recorder is off, or this
    torch has none), and where it is not safe to ask."""
    recorders = [
        entries for dump in dump_functions(safe_backends(backends)) if (entries := _entries(dump(True, False)))
    ]
    if not recorders:
        return None
    of_group = [
        entry
        for entry in itertools.chain(*recorders)
        if entry["process_group"][0] == group and not entry["is_p2p"] and int(entry["time_created_ns"]) >= since_ns
    ]
    return GroupEntries(
        [
            RecordedCollective(operation(entry["profiling_name"]), _size(entry))
            for entry in sorted(of_group, key=lambda entry: (int(entry["time_created_ns"]), int(entry["record_id"])))
            if not entry["profiling_name"].endswith(_BATCH)
        ],
        all(_is_complete(entries, since_ns) for entries in recorders),
    )


def safe_backends(backends: Iterable[str]) -> set[str]:
    """Those of these backends whose recorder may be asked for its entries."""
    return set(backends) if nccl_entries_are_safe(os.environ) else set(backends) - {"nccl"}


def _entries(dump: bytes | str) -> list[dict[str, Any]]:
    found = json.loads(dump).get("entries") if dump else None
    return found if isinstance(found, list) else []


def _is_complete(entries: Sequence[dict[str, Any]], since_ns: int) -> bool:
    """Whether a recorder still has what was launched at or after `since_ns`: nothing was overwritten, or only older."""
    first = min(int(entry.get("time_created_ns", 0)) for entry in entries)
    return min(int(entry.get("record_id", 0)) for entry in entries) == 0 or first <= since_ns


def without_known(
    recorded: Sequence[RecordedCollective], known: Sequence[RecordedCollective], unknown: int = 0
) -> list[RecordedCollective]:
    """Returns `recorded` less `known`, in order. Each known collective removes an equal one; else one of the same
    operation; else, where it is a reduce_scatter, an all_reduce, as which gloo runs and records it. So many of
    `recorded` as are `unknown` stay: before torch 2.7 the operations of a batch are known and not recorded."""
    left = list(recorded)
    for match in (_same, _same_operation, _run_by_gloo_as):
        known = [each for each in known if len(left) <= unknown or not _remove_first(left, each, match)]
    return left


def _remove_first(left: list[RecordedCollective], known: RecordedCollective, match: Any) -> bool:
    place = next((place for place, other in enumerate(left) if match(known, other)), None)
    if place is not None:
        del left[place]
    return place is not None


def _same(known: RecordedCollective, recorded: RecordedCollective) -> bool:
    return known == recorded


def _same_operation(known: RecordedCollective, recorded: RecordedCollective) -> bool:
    return known.op == recorded.op


def _run_by_gloo_as(known: RecordedCollective, recorded: RecordedCollective) -> bool:
    return known.op == "reduce_scatter" and recorded.op == "all_reduce"


def operation(name: str) -> str:
    """The operation that torch calls by this name: nccl:_all_gather_base -> all_gather"""
    text = name.rpartition(":")[2].lower()
    return next((op for part, op in _OPS if part in text), text)


def _size(entry: dict[str, Any]) -> int:
    """The bytes as nccl-tests counts: the larger of the two buffers."""
    return max(
        _buffer_size(entry.get("input_sizes"), entry.get("input_dtypes")),
        _buffer_size(entry.get("output_sizes"), entry.get("output_dtypes")),
    )


def _buffer_size(shapes: Iterable[Sequence[int]] | None, dtypes: Sequence[str] | None) -> int:
    """The bytes of tensors with these shapes. Where there are fewer types than shapes the last type holds for the rest;
    an unknown type counts one byte."""
    types = list(dtypes or ())
    return sum(
        math.prod(shape) * _BYTES.get(types[min(place, len(types) - 1)] if types else "", 1)
        for place, shape in enumerate(shapes or ())
    )
