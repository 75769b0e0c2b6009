"""What torch's Flight Recorder says of collectives that no Python call made. JSON only, never pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from laggard.trainer_hooks.collectives.flight_recorder import dump_functions

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


class Seen(NamedTuple):
    """A collective: its operation by laggard's name, its size in bytes."""

    op: str
    size: int


class Witness(NamedTuple):
    """What the Flight Recorder holds of one group since a time. `whole`: nothing since then was overwritten."""

    seen: list[Seen]
    whole: bool


def witness(group: str, backend: str, since_ns: int) -> Witness | None:
    """The collectives of the group that were launched at or after `since_ns`, Unix time, in order; not send and recv.
    None where torch keeps none: the Flight Recorder is off, or this torch has none."""
    functions = dump_functions()
    dump = functions[-1 if backend == "nccl" else 0](True, False) if functions else None
    entries = json.loads(dump).get("entries") if dump else None
    if not entries:
        return None
    first = min(int(entry.get("time_created_ns", 0)) for entry in entries)
    overwritten = min(int(entry.get("record_id", 0)) for entry in entries) > 0
    return Witness(
        [
            Seen(_op(entry["profiling_name"]), _size(entry))
            for entry in sorted(entries, key=lambda entry: int(entry.get("record_id", 0)))
            if entry["process_group"][0] == group and not entry["is_p2p"] and int(entry["time_created_ns"]) >= since_ns
        ],
        not overwritten or first <= since_ns,
    )


def unseen(witnessed: Sequence[Seen], known: Sequence[Seen]) -> list[Seen]:
    """`witnessed` less `known`, in order. What is known is taken away where it is the same; else where the operation
    is; gloo carries out a reduce_scatter as all_reduces, and logs it so."""
    left = list(witnessed)
    for match in (_same, _same_operation, _as_carried_out):
        known = [each for each in known if not _take(left, each, match)]
    return left


def _take(left: list[Seen], each: Seen, match: Any) -> bool:
    place = next((place for place, other in enumerate(left) if match(each, other)), None)
    if place is not None:
        del left[place]
    return place is not None


def _same(known: Seen, witnessed: Seen) -> bool:
    return known == witnessed


def _same_operation(known: Seen, witnessed: Seen) -> bool:
    return known.op == witnessed.op


def _as_carried_out(known: Seen, witnessed: Seen) -> bool:
    return known.op == "reduce_scatter" and witnessed.op == "all_reduce"


def _op(name: str) -> str:
    """nccl:_all_gather_base -> all_gather"""
    text = name.rpartition(":")[2].lower()
    return next((op for part, op in _OPS if part in text), text)


def _size(entry: dict[str, Any]) -> int:
    """As nccl-tests counts: the larger of the two buffers."""
    return max(
        _buffer(entry.get("input_sizes"), entry.get("input_dtypes")),
        _buffer(entry.get("output_sizes"), entry.get("output_dtypes")),
    )


def _buffer(shapes: Iterable[Sequence[int]] | None, dtypes: Sequence[str] | None) -> int:
    kinds = list(dtypes or ())
    return sum(
        math.prod(shape) * _BYTES.get(kinds[min(place, len(kinds) - 1)] if kinds else "", 1)
        for place, shape in enumerate(shapes or ())
    )
