"""Writes what a run of devices.py left as Flight Recorder dumps of torch 2.4 to 2.15, pickles or JSON.

Versions and fields are those of torch/csrc/distributed/c10d/NCCLUtils.hpp (2.4), FlightRecorder.hpp and
FlightRecorderDetail.hpp (2.5 and newer), and hooks/FlightRecorderHook.cpp (2.15). A dump asks the events once more, so
a state is that of its moment. Without TORCH_NCCL_ENABLE_TIMING nothing tells what a device began; torch 2.15's hook
gives a collective both times when it is done. Messages that are posted together are a batch: one launch, which ends
with a record of its own. Torch 2.4 and 2.5 give that a collective's number."""

import json
import os
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simulator.devices import Call, Played
from simulator.layout import Group
from simulator.programme import Programme, Record

EPOCH = 1_769_000_000.0
BYTES_PER_ELEMENT = 2
STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
NAMES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_all_gather_base"}


class Torch(NamedTuple):
    """What a release of torch writes. `library`: under which name NCCL's version stands, if any."""

    version: str
    status: bool = True
    threads: bool = False
    library: str = ""
    backend: str = "nccl"
    counts_batches: bool = False


RELEASES = {
    "2.4": Torch("2.2", status=False, counts_batches=True),
    "2.5": Torch("2.4", counts_batches=True),
    "2.6": Torch("2.5", threads=True, library="nccl_version"),
    "2.7": Torch("2.7", threads=True, library="nccl_version"),
    "2.8": Torch("2.9", threads=True, library="nccl_version"),
    "2.10": Torch("2.10", threads=True, library="comm_lib_version"),
    "2.13": Torch("2.10", threads=True, library="comm_lib_version"),
    "2.15": Torch("2.10", threads=True, library="comm_lib_version", backend="nccl2"),
}


@dataclass(frozen=True)
class Dumping:
    """How a rank dumps: `moment`, in seconds of the run; `written`, by how many seconds later the file was; `before`:
    the steps that ran before the recorder's oldest record; `entries`: the size of its buffer, 0: there are no records;
    `clock`: by how many seconds its clock is off; `wrong_call`: the place of the call that it made as something
    else."""

    torch: str = "2.13"
    form: str = "pickle"
    timing: bool = False
    moment: float = 1e9
    written: float = 600.0
    before: int = 0
    entries: int = 2000
    counts: bool = True
    clock: float = 0.0
    wrong_call: int = -1


def numbered(programme: Programme) -> dict[Group, int]:
    """A number for each group, the world's the first, as torch counts them."""
    groups = {item.record.group for item in programme.items if item.record is not None}
    world = programme.layout.group(0, "world")
    return {group: number for number, group in enumerate([world, *sorted(groups - {world})])}


def dump(played: Played, rank: int, numbers: dict[Group, int], how: Dumping) -> dict[str, Any]:
    """Returns one rank's dump."""
    release = RELEASES[how.torch]
    own = {group: place for place, group in enumerate(group for group in numbers if rank in group.ranks)}
    per_step = [call for call in played.calls[rank] if call.step == 0]
    counts: dict[tuple[Group, bool], int] = defaultdict(int)
    for call in per_step:
        record = call.item.record
        assert record is not None
        counts[record.group, record.peer is not None] += how.before
    first = how.before * len(per_step)
    found: list[dict[str, Any]] = []
    status: dict[int, list[int]] = {}
    calls = [call for call in played.calls[rank] if call.launched <= how.moment]
    for place, call in enumerate(calls):
        record = call.item.record
        assert record is not None
        paired = record.peer is not None
        before, after = (_is_batch(calls, at) for at in (place - 1, place))
        if not before:
            counts[record.group, paired] += 1
        if after and release.counts_batches:
            counts[record.group, False] += 1
        count = counts[record.group, False], counts[record.group, True]
        made = _entry(call, rank, numbers[record.group], own[record.group], count, how)
        if place == how.wrong_call:
            made["profiling_name"] = f"{release.backend}:_all_gather_base"
            made["input_sizes"] = [[7]]
        found.append(made)
        if before and release.backend == "nccl":
            is_p2p = not release.counts_batches
            found.append({**made, "profiling_name": "nccl:coalesced", "is_p2p": is_p2p, "input_sizes": []})
        _count(status.setdefault(own[record.group], [-1, -1, -1]), counts[record.group, paired], call, how)
    for place, made in enumerate(found):
        made["record_id"] = first + place
    return _document(rank, numbers, found, status, how)


def _is_batch(calls: Sequence[Call], place: int) -> bool:
    """Whether the call at that place is a message that is posted together with the next one."""
    if not 0 <= place < len(calls) - 1:
        return False
    one, other = (calls[at].item.record for at in (place, place + 1))
    if one is None or other is None or one.peer is None or other.peer is None:
        return False
    return one.issue is not None and one.peer == other.peer and {one.op, other.op} == {"send", "recv"}


def _count(last: list[int], number: int, call: Call, how: Dumping) -> None:
    """Notes the call in the status of its group."""
    last[0] = number
    last[1] = number if how.timing and call.begun <= how.moment else last[1]
    last[2] = number if call.done <= how.moment else last[2]


def _entry(call: Call, rank: int, number: int, own: int, count: tuple[int, int], how: Dumping) -> dict[str, Any]:
    """The record of a call. `number`: its group's; `own`: the group's place among the rank's; `count`: of the group's
    collectives and messages so far."""
    record, release = call.item.record, RELEASES[how.torch]
    assert record is not None
    done = _clock(call.done, how) if call.done <= how.moment else None
    begun = _clock(call.begun, how) if how.timing and call.begun <= how.moment else None
    begun = done if release.backend == "nccl2" else begun
    never = 0 if how.form == "json" else None
    inputs, outputs = _sizes_of(record.op, record.size // BYTES_PER_ELEMENT, len(record.group.ranks))
    made = {
        "record_id": 0,
        "pg_id": own,
        "process_group": (str(number), _description(record.group)),
        "collective_seq_id": count[0],
        "p2p_seq_id": count[1],
        "op_id": sum(count),
        "profiling_name": f"{release.backend}:{_name_of(record, rank)}",
        "time_created_ns": _clock(call.launched, how),
        "input_sizes": inputs,
        "input_dtypes": ["BFloat16"],
        "output_sizes": outputs,
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "started" if begun else "scheduled",
        "time_discovered_started_ns": begun or never,
        "time_discovered_completed_ns": done or never,
        "retired": bool(done),
        "timeout_ms": 600_000,
        "is_p2p": record.peer is not None,
    }
    if how.form != "json":
        made["frames"] = [{"name": "train", "filename": "train.py", "line": 41}]
    return made | ({"thread_name": "pt_main_thread", "thread_id": "140241"} if release.threads else {})


def _sizes_of(op: str, elements: int, members: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the sizes of a call's input and output, of which the larger one has about so many elements: a part of it
    goes into an all_gather, and comes out of a reduce_scatter."""
    part = max(1, elements // members)
    whole = [[part * members]] if op in NAMES else [[max(1, elements)]]
    return {"all_gather": ([[part]], whole), "reduce_scatter": (whole, [[part]])}.get(op, (whole, whole))


def _name_of(record: Record, rank: int) -> str:
    """The operation as torch names it, with both sides of a send or recv."""
    name = NAMES.get(record.op, record.op)
    if record.peer is None:
        return name
    own, other = map(record.group.ranks.index, (rank, record.peer))
    return f"{name} {own}{'->' if record.op == 'send' else '<-'}{other}"


def _description(group: Group) -> str:
    return "default_pg" if group.role == "world" else group.role


def _config(rank: int, numbers: Mapping[Group, int]) -> dict[str, dict[str, str]]:
    """What a dump says of the groups that the rank is in."""
    return {
        str(number): {"name": str(number), "desc": _description(group), "ranks": str(list(group.ranks))}
        for group, number in numbers.items()
        if rank in group.ranks
    }


def _clock(seconds: float, how: Dumping) -> int:
    return int((EPOCH + how.clock + seconds) * 1e9)


def _document(
    rank: int,
    numbers: dict[Group, int],
    found: list[dict[str, Any]],
    status: dict[int, list[int]],
    how: Dumping,
) -> dict[str, Any]:
    release = RELEASES[how.torch]
    as_text = how.form == "json"
    made: dict[str, Any] = {"version": release.version}
    if release.library:
        made[release.library] = "2.27.5"
    made["pg_config"] = _config(rank, numbers) if how.entries or how.counts else {}  # else the recorder is off
    if release.status:
        made["pg_status"] = {
            str(number): {key: str(value) if as_text else value for key, value in zip(STATUS, last, strict=True)}
            for number, last in sorted(status.items())
            if how.counts
        }
    kept = found[-how.entries :] if how.entries else []
    if kept or not as_text:
        made["entries"] = kept
    return made


def write_dump(document: dict[str, Any], path: Path, how: Dumping, last: float) -> None:
    """Writes the dump, and gives the file the time at which torch wrote it; `last`: the run's last moment."""
    if how.form == "json":
        path.write_text(json.dumps(document))
    else:
        path.write_bytes(pickle.dumps(document, 2))
    moment = EPOCH + how.clock + min(how.moment, last) + how.written
    os.utime(path, (moment, moment))
