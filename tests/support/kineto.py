"""Profiler traces of GPU jobs as Kineto writes them, which a machine without a GPU cannot make.

The events have the form of real ones: those of 2023, whose NCCL kernels tell no group, and those of torch 2.4 on, whose
kernels have the collective's metadata (torch/csrc/distributed/c10d/ParamCommsUtils.hpp names the fields).
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.1


def event(category: str, name: str, start: float, end: float, **args: Any) -> dict[str, Any]:
    """A complete event; times in seconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start * 1e6, "dur": (end - start) * 1e6,
        "args": args,
    }  # fmt: skip


def nccl(start: float, end: float, ranks: Sequence[int] = (), number: int | None = None) -> dict[str, Any]:
    """An all_reduce of 4 MiB. Without `ranks`, as old traces have it: no metadata."""
    if not ranks:
        return event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", start, end, stream=20)
    metadata = {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "Group size": len(ranks),
        "dtype": "Float",
        "Process Group Name": "-".join(map(str, ranks)),
        "Process Group Description": "dp",
        "Process Group Ranks": str(list(ranks)),
        **({} if number is None else {"Seq": number}),
    }
    return event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", start, end, stream=20, **metadata)


def gpu_rank(
    rank: int,
    busy: float,
    slowest: float,
    transfer: float = 0.005,
    steps: int = 20,
    group: Sequence[int] = (),
    numbered: bool = True,
    first_step: int = 5,
) -> list[dict[str, Any]]:
    """A rank that computes for `busy` seconds a step, on a clock of its own, and is in an all_reduce until the slowest
    rank has come and `transfer` is over. A smaller all_reduce is hidden behind its computing."""
    events = []
    for step in range(steps):
        start = 1000.0 * (rank + 1) + step * (slowest + transfer + 0.001)
        end = start + slowest + transfer + 0.001
        number = 2 * step
        events += [
            event("user_annotation", f"ProfilerStep#{first_step + step}", start, end),
            event("kernel", "gemm", start, start + busy),
            nccl(start + 0.001, start + 0.003, group, number if numbered else None),
            nccl(start + busy, start + slowest + transfer, group, number + 1 if numbered else None),
        ]
    return events


def document(rank: int, world_size: int, events: Sequence[Any], **fields: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        **fields,
        "traceEvents": list(events),
        "traceName": "x",
    }


def write(path: Path, value: dict[str, Any], indent: int | None = None) -> Path:
    text = json.dumps(value, indent=indent).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
