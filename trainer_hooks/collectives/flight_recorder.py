"""The progress of each process group, as torch's Flight Recorder reports it: a few microseconds, and no pickle.

torch 2.13 has it on by default, for gloo too; older ones where TORCH_NCCL_TRACE_BUFFER_SIZE is set. Each backend has a
recorder of its own. The groups' numbers are torch's own. Gloo's `enqueued` counts sends and receives with the
collectives, and its `started` is never reported.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import FLIGHT_RECORDER

ABSENT, ON, OFF = range(len(FLIGHT_RECORDER))
_NUMBERS: Final = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_STATUS_BYTES_LIMIT: Final = 1 << 20
_VERSION: Final = re.compile(r"\d+")
_TRUE: Final = ("1", "y", "yes", "t", "true")  # as torch reads its variables

_SEEN: frozenset[str] = frozenset({"gloo", "nccl"})


class FlightRecorderStatus(NamedTuple):
    """`state`: ABSENT, ON or OFF. `groups`: (name, enqueued, started, completed), -1 for a number that is not reported.
    Torch numbers the groups in the order in which this process joined them: `#0` is the world, and another's number is
    not the same on every rank."""

    state: int
    groups: tuple[tuple[str, int, int, int], ...]


def read_status() -> FlightRecorderStatus:
    """The status that torch reports now; it is not imported for that. OFF: a process group is up, and nothing is
    reported of any group."""
    dumps = dump_functions(_SEEN)
    if not dumps:
        return FlightRecorderStatus(ABSENT, ())
    status: dict[str, Any] = {}
    for dump in dumps:
        status |= _parse_status(dump(False, False))
    if not status:
        return FlightRecorderStatus(OFF if _process_group_is_up() else ABSENT, ())
    return FlightRecorderStatus(ON, tuple((f"#{key}", *_numbers(entry)) for key, entry in status.items()))


def saw_backends(names: Iterable[str]) -> None:
    """Process groups have backends of these names: from here on read_status() asks their recorders, too."""
    global _SEEN
    if not _SEEN.issuperset(names):
        _SEEN = _SEEN.union(names)  # replaced as a whole: another thread reads it


def seen_backends() -> frozenset[str]:
    """The names of the backends whose recorders are asked."""
    return _SEEN


def dump_functions(backends: Iterable[str]) -> tuple[Callable[..., Any], ...]:
    """Torch's own functions, (include collectives, only active) -> JSON or nothing, for the backends of these names, as
    far as this torch has them. Torch 2.15 has a recorder for each backend, by the backend's own name; before that,
    those of gloo (since 2.8) and of `nccl`, which is `nccl-legacy` to scripts since 2.15."""
    module = sys.modules.get("torch._C._distributed_c10d")
    by_name, of_nccl = (getattr(module, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"))
    others = sorted(set(backends) - {"gloo", "nccl"})
    found = [by_name if "gloo" in backends else None, of_nccl if "nccl" in backends else None]
    found += [functools.partial(_dump_by_name, by_name, name) for name in others if by_name is not None]
    return tuple(function for function in found if function is not None)


def keeps_entries(backends: Iterable[str]) -> bool:
    """Whether this torch has a recorder for one of these backends, on or off, that can be read without pickle: torch
    2.4 has none, 2.6 has NCCL's, 2.8 gloo's as well, 2.15 any."""
    return any(
        dump_functions({name}) and (name in ("gloo", "nccl") or _torch_version() >= (2, 15)) for name in backends
    )


def nccl_entries_are_safe(environ: Mapping[str, str]) -> bool:
    """Whether NCCL's recorder may be asked for its entries. Before torch 2.15 it queries their CUDA events without its
    lock, when torch's watchdog may have freed them, unless they go into a cache: torch 2.5 can have one, and from torch
    2.6 on it is there by default (pytorch#133727, #140975)."""
    version = _torch_version()
    if version >= (2, 15) or version < (2, 5):
        return version >= (2, 15)
    asked = environ.get("TORCH_NCCL_CUDA_EVENT_CACHE", "").lower()
    return asked in _TRUE if asked else version >= (2, 6)


def _torch_version() -> tuple[int, ...]:
    """Major and minor; empty while torch is not imported."""
    return tuple(map(int, _VERSION.findall(getattr(sys.modules.get("torch"), "__version__", ""))[:2]))


def _dump_by_name(dump: Callable[..., Any], backend: str, collectives: bool, active: bool) -> Any:
    try:
        return dump(collectives, active, backend=backend)
    except TypeError:  # before torch 2.15 it takes no name
        return b""


def _parse_status(text: bytes | str) -> dict[str, Any]:
    """The values under pg_status. The rest is not parsed: the groups' members are there, megabytes on a cluster."""
    whole = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    _, found, after = whole.partition('"pg_status":')
    if not found or len(after) > _STATUS_BYTES_LIMIT:
        return {}
    status, _ = json.JSONDecoder().raw_decode(after.lstrip())
    return status if isinstance(status, dict) else {}


def _numbers(entry: Any) -> tuple[int, int, int]:
    texts = [str(entry.get(name)) if isinstance(entry, dict) else "" for name in _NUMBERS]  # numbers, or text of them
    enqueued, started, completed = (int(text) if text.lstrip("-").isdecimal() else -1 for text in texts)
    return enqueued, started, completed


def _process_group_is_up() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(getattr(distributed, "is_initialized", bool)())


# The entries of torch's Flight Recorder on each collective, to find those that no Python call made. JSON only, never
# pickle.

_BYTES: Final = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8,
    "Double": 8, "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
_OPS: Final = (
    "reduce_scatter", "all_reduce", "all_gather", "all_to_all", "barrier", "broadcast", "gather", "scatter", "reduce",
)  # fmt: skip
"""Those whose names have another's in them come first."""

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


_MATCHES: Final[tuple[Callable[[RecordedCollective, RecordedCollective], bool], ...]] = (
    lambda known, recorded: known == recorded,
    lambda known, recorded: known.op == recorded.op,
    lambda known, recorded: (known.op, recorded.op) == ("reduce_scatter", "all_reduce"),  # gloo runs it as that
)


def without_known(
    recorded: Sequence[RecordedCollective], known: Sequence[RecordedCollective], unknown: int = 0
) -> list[RecordedCollective]:
    """Returns `recorded` less `known`, in order. Each known collective removes an equal one; else one of the same
    operation; else, where it is a reduce_scatter, an all_reduce, as which gloo runs and records it. So many of
    `recorded` as are `unknown` stay: before torch 2.7 the operations of a batch are known and not recorded."""
    left = list(recorded)
    for match in _MATCHES:
        known = [each for each in known if len(left) <= unknown or not _remove_first(left, each, match)]
    return left


def _remove_first(left: list[RecordedCollective], known: RecordedCollective, match: Any) -> bool:
    place = next((place for place, other in enumerate(left) if match(known, other)), None)
    if place is not None:
        del left[place]
    return place is not None


def operation(name: str) -> str:
    """The operation that torch calls by this name: nccl:_all_gather_base -> all_gather"""
    text = name.rpartition(":")[2].lower()
    return next((op for op in _OPS if op.replace("_", "") in text.replace("_", "")), text)


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
