"""How far each process group has come, as torch's Flight Recorder reports it: a few microseconds, and no pickle.

torch 2.13 has it on by default, for gloo too; older ones where TORCH_NCCL_TRACE_BUFFER_SIZE is set. The groups' numbers
are torch's own. Gloo's `enqueued` counts sends and receives with the collectives, and its `started` is never reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import FLIGHT_RECORDER

ABSENT, ON, OFF = range(len(FLIGHT_RECORDER))
_NUMBERS: Final = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
_STATUS_BYTES_LIMIT: Final = 1 << 20


class FlightRecorderStatus(NamedTuple):
    """`state`: ABSENT, ON or OFF. `groups`: (name, enqueued, started, completed), -1 for a number that is not reported.
    Torch numbers the groups in the order in which this process joined them: `#0` is the world, and another's number is
    not the same on every rank."""

    state: int
    groups: tuple[tuple[str, int, int, int], ...]


def read_status() -> FlightRecorderStatus:
    """What torch reports now; it is not imported for that. OFF: a process group is up, and nothing is reported of any
    group."""
    dumps = dump_functions()
    if not dumps:
        return FlightRecorderStatus(ABSENT, ())
    status: dict[str, Any] = {}
    for dump in dumps:
        status |= _parse_status(dump(False, False))
    if not status:
        return FlightRecorderStatus(OFF if _process_group_is_up() else ABSENT, ())
    return FlightRecorderStatus(ON, tuple((f"#{key}", *_numbers(entry)) for key, entry in status.items()))


def dump_functions() -> tuple[Callable[..., Any], ...]:
    """Torch's own functions, (include collectives, only active) -> JSON: first that of the host's backends such as
    gloo, then that of NCCL, as far as this torch has them; before torch 2.12 there is NCCL's alone."""
    module = sys.modules.get("torch._C._distributed_c10d")
    found = (getattr(module, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"))
    return tuple(function for function in found if function is not None)


def _parse_status(text: bytes | str) -> dict[str, Any]:
    """What stands under pg_status. The rest is not parsed: the groups' members are there, megabytes on a cluster."""
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
