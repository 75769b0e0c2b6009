"""Writes a simulated case as dumps of torch's Flight Recorder, one pickle a rank, as NCCL's watchdog leaves them.

The fields are those of torch 2.13's ProcessGroupNCCL, version 2.10 of the format. Who is dead leaves no dump; who hangs
in its own work does, since the watchdog is a thread of its own. Each send and recv is an entry of its own, as they are
where they are not coalesced. Without TORCH_NCCL_ENABLE_TIMING, as torch ships, nothing tells what a device began."""

import pickle
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.case import Simulated
from simulator.layout import Group
from simulator.programme import Record
from simulator.recording import RankWriter, clocks

BUFFER_ENTRIES = 2000  # torch's default
BYTES_PER_ELEMENT = 2
STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
NAMES = {"reduce_scatter": "_reduce_scatter_base", "all_gather": "_all_gather_base"}


def write_dumps(simulated: Simulated, directory: Path, timing: bool = True) -> None:
    """Writes `directory`/rank_N for every rank that is not dead; `timing`: with TORCH_NCCL_ENABLE_TIMING."""
    directory.mkdir(parents=True, exist_ok=True)
    layout = simulated.programme.layout
    by_node = clocks(simulated)
    writers = [RankWriter(simulated, rank, by_node[layout.node(rank)]) for rank in range(layout.world_size)]
    groups = {record.group for writer in writers for record in writer.records}
    world = layout.group(0, "world")
    numbers = {group: str(number) for number, group in enumerate([world, *sorted(groups - {world})])}
    for writer in writers:
        if writer.rank not in simulated.dead_at:
            with (directory / f"rank_{writer.rank}").open("wb") as file:
                pickle.dump(dump(writer, numbers, timing), file)


def sizes_of(op: str, elements: int, members: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the sizes of a call's input and output, of which the larger one has about so many elements: a part of it
    goes into an all_gather, and comes out of a reduce_scatter."""
    part = max(1, elements // members)
    whole = [[part * members]] if op in NAMES else [[max(1, elements)]]
    return {"all_gather": ([[part]], whole), "reduce_scatter": (whole, [[part]])}.get(op, (whole, whole))


def name_of(record: Record, rank: int) -> str:
    """The operation as torch names it, with both sides of a send or recv."""
    name = NAMES.get(record.op, record.op)
    if record.peer is None:
        return name
    own, other = map(record.group.ranks.index, (rank, record.peer))
    return f"{name} {own}{'->' if record.op == 'send' else '<-'}{other}"


def description(group: Group) -> str:
    return "default_pg" if group.role == "world" else group.role


def config(rank: int, numbers: Mapping[Group, object]) -> dict[str, dict[str, str]]:
    """What a dump says of the groups that the rank is in."""
    return {
        str(number): {"name": str(number), "desc": description(group), "ranks": str(list(group.ranks))}
        for group, number in numbers.items()
        if rank in group.ranks
    }


class Called(NamedTuple):
    """A call of a rank. `counts`: of its group's collectives and messages so far; times in nanoseconds, None or 0:
    never."""

    record: Record
    rank: int
    counts: tuple[int, int]
    created: int
    begun: int | None
    done: int | None


def entry(called: Called, number: object, own: int, backend: str = "nccl") -> dict[str, Any]:
    """The record of a call. `number`: its group's; `own`: the group's place among the rank's."""
    record, (seq, p2p) = called.record, called.counts
    inputs, outputs = sizes_of(record.op, record.size // BYTES_PER_ELEMENT, len(record.group.ranks))
    return {
        "frames": [],
        "record_id": 0,
        "pg_id": own,
        "process_group": (str(number), description(record.group)),
        "collective_seq_id": seq,
        "p2p_seq_id": p2p,
        "op_id": seq + p2p,
        "profiling_name": f"{backend}:{name_of(record, called.rank)}",
        "time_created_ns": called.created,
        "input_sizes": inputs,
        "input_dtypes": ["BFloat16"],
        "output_sizes": outputs,
        "output_dtypes": ["BFloat16"],
        "state": "completed" if called.done else "started" if called.begun else "scheduled",
        "time_discovered_started_ns": called.begun,
        "time_discovered_completed_ns": called.done,
        "retired": bool(called.done),
        "timeout_ms": 600_000,
        "is_p2p": record.peer is not None,
    }


def dump(writer: RankWriter, numbers: dict[Group, str], timing: bool = True) -> dict[str, Any]:
    """Returns one rank's dump: its newest collectives, in the order of their calls."""
    columns = writer.columns()
    calls = writer.simulated.times.ready.shape[0] * len(writer.calls)
    found: list[dict[str, Any]] = []
    counts: dict[tuple[Group, bool], int] = defaultdict(int)
    status: dict[Group, list[int]] = defaultdict(lambda: [-1, -1, -1])
    for place in range(calls):
        step, call = divmod(place, len(writer.calls))
        if not np.isfinite(columns.issued[step, call]):
            continue
        record = writer.records[call]
        paired = record.peer is not None
        counts[record.group, paired] += 1
        issued, start, end = (
            int(writer.clock(column[step, call]) * 1e9) if np.isfinite(column[step, call]) else None
            for column in columns[:3]
        )
        start = start if timing else None
        last = status[record.group]
        number = counts[record.group, paired]
        last[0], last[1], last[2] = number, number if start else last[1], number if end else last[2]
        both = counts[record.group, False], counts[record.group, True]
        called = Called(record, writer.rank, both, issued or 0, start, end)
        own = numbers[record.group]
        found.append(entry(called, own, int(own)) | {"record_id": len(found)})
    said = {numbers[group]: dict(zip(STATUS, last, strict=True)) for group, last in status.items()}
    own_groups = config(writer.rank, numbers)
    return {"version": "2.10", "pg_config": own_groups, "pg_status": said, "entries": found[-BUFFER_ENTRIES:]}
