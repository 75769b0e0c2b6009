"""Writes a simulated case as dumps of torch's Flight Recorder, one pickle a rank, as NCCL's watchdog leaves them.

The fields are those of torch 2.13's ProcessGroupNCCL, version 2.10 of the format. Who is dead leaves no dump; who hangs
in its own work does, since the watchdog is a thread of its own. Each send and recv is an entry of its own, as they are
where they are not coalesced. Without TORCH_NCCL_ENABLE_TIMING, as torch ships, nothing tells what a device began."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from simulator.case import Simulated
from simulator.layout import Group
from simulator.recording import RankWriter, clocks

BUFFER_ENTRIES = 2000  # torch's default
BYTES_PER_ELEMENT = 2
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
                pickle.dump(dump(writer, numbers, world, timing), file)


def sizes_of(op: str, elements: int, members: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the sizes of a call's input and output, of which the larger one has about so many elements: a part of it
    goes into an all_gather, and comes out of a reduce_scatter."""
    part = max(1, elements // members)
    whole = [[part * members]] if op in NAMES else [[max(1, elements)]]
    return {"all_gather": ([[part]], whole), "reduce_scatter": (whole, [[part]])}.get(op, (whole, whole))


def dump(writer: RankWriter, numbers: dict[Group, str], world: Group, timing: bool = True) -> dict[str, Any]:
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
        name = NAMES.get(record.op, record.op)
        if record.peer is not None:
            arrow = "->" if record.op == "send" else "<-"
            name += f" {record.group.ranks.index(writer.rank)}{arrow}{record.group.ranks.index(record.peer)}"
        inputs, outputs = sizes_of(record.op, record.size // BYTES_PER_ELEMENT, len(record.group.ranks))
        start = start if timing else None
        last = status[record.group]
        number = counts[record.group, paired]
        last[0], last[1], last[2] = number, number if start else last[1], number if end else last[2]
        found.append(
            {
                "frames": [],
                "record_id": len(found),
                "pg_id": int(numbers[record.group]),
                "process_group": (numbers[record.group], "default_pg" if record.group == world else record.group.role),
                "collective_seq_id": counts[record.group, False],
                "p2p_seq_id": counts[record.group, True],
                "op_id": counts[record.group, False] + counts[record.group, True],
                "profiling_name": f"nccl:{name}",
                "time_created_ns": issued,
                "input_sizes": inputs,
                "input_dtypes": ["BFloat16"],
                "output_sizes": outputs,
                "output_dtypes": ["BFloat16"],
                "state": "completed" if end else "started" if start else "scheduled",
                "time_discovered_started_ns": start,
                "time_discovered_completed_ns": end,
                "retired": end is not None,
                "timeout_ms": 600000,
                "is_p2p": paired,
            }
        )
    config = {
        number: {
            "name": number,
            "desc": "default_pg" if group == world else group.role,
            "ranks": str(list(group.ranks)),
        }
        for group, number in numbers.items()
        if writer.rank in group.ranks
    }
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    said = {numbers[group]: dict(zip(names, last, strict=True)) for group, last in status.items()}
    return {"version": "2.10", "pg_config": config, "pg_status": said, "entries": found[-BUFFER_ENTRIES:]}
