"""What of a recording each tool that runs as it ships is given, and the tools by their names in the tables.

Where a tool measures something that a recording has in another form, the nearest is taken, and said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quality.tools.shipped.environments import (
    DLROVER,
    MEGATRON,
    NVRX,
    NVRX_NEWEST,
    TORCH,
    TRACEML,
    CannotInstall,
    install,
)
from quality.tools.shipped.process import Request, Shipped
from quality.trace import Trace, medians, read

Floats = npt.NDArray[np.float64]

COMPUTE = ("forward", "backward", "optimizer")
SECTIONS = {"data_loading": "input", "fwd": "forward"}
"""The sections of NVRx's usage guide, and the phases of a recording that they are."""
REPORT_STEPS = 10
"""After so many steps NVRx makes a report here; how often is left to its user."""
DUMPS = "flight_recorder"
"""The folder beside a recording in which torch's dumps lie, where the job stopped."""


def dumps(trace: Path) -> Request | None:
    folder = trace.parent / DUMPS
    return {"folder": str(folder), "pattern": "*_*"} if folder.is_dir() else None


def nvrx_windows(trace: Path) -> Request | None:
    """The own times of phases stand for kernels, since NVRx leaves collectives out; a section's time is the wall
    clock's, waits included."""
    seen = read(trace)
    kernels = {phase: seen.own(phase) for phase in COMPUTE if phase in seen.spans}
    sections = {name: seen.spans[phase] for name, phase in SECTIONS.items() if phase in seen.spans}
    if not kernels:
        return None
    steps = len(seen.lengths)
    windows = [
        [
            {
                "kernels": {name: plain(times[first : first + REPORT_STEPS, rank]) for name, times in kernels.items()},
                "sections": {
                    name: plain(times[first : first + REPORT_STEPS, rank]) for name, times in sections.items()
                },
            }
            for rank in range(seen.ranks)
        ]
        for first in range(0, steps, REPORT_STEPS)
        if first == 0 or steps - first >= REPORT_STEPS
    ]
    return {"windows": windows}


def nvrx_relative(trace: Path) -> Request | None:
    request = nvrx_windows(trace)
    return request and {**request, "scores": "relative"}


def nvrx_individual(trace: Path) -> Request | None:
    request = nvrx_windows(trace)
    return request and {**request, "scores": "individual"}


def traceml_rows(trace: Path) -> Request | None:
    """Gradients that are reduced after the backward pass count as a part of it, as they are with DDP. Its step begins
    after the input. A job whose forward pass gathers weights is FSDP to it."""
    seen = read(trace)
    if not {"input", "forward", "backward", "optimizer"} <= set(seen.spans):
        return None
    sharded = "all_gather" in seen.ops and float(np.nanmedian(seen.waits["forward"])) > 0
    backward = backward_with_gradients(seen)
    metrics = {
        "input_wait": seen.spans["input"],
        "forward": seen.spans["forward"],
        "backward": backward,
        "optimizer_step": seen.spans["optimizer"],
        "traced_step_time": seen.lengths - seen.spans["input"],
    }
    rows = [
        [rank, step, {name: 1e3 * float(values[step, rank]) for name, values in metrics.items()}]
        for step in range(len(seen.lengths))
        for rank in range(seen.ranks)
        if all(np.isfinite(values[step, rank]) for values in metrics.values())
    ]
    return {"rows": rows, "strategy": "fsdp" if sharded else "ddp"} if rows else None


def backward_with_gradients(seen: Trace) -> Floats:
    """From where the backward pass begins to where the optimizer does, less the forward passes between."""
    span = seen.begins["optimizer"] - seen.begins["forward"] - seen.spans["forward"]
    return np.asarray(np.fmax(span, seen.spans["backward"]))


def dlrover_nodes(trace: Path) -> Request | None:
    """The own time of the forward pass stands for DLRover's matrix product, and for its all_reduce the least time that
    a member of a collective spent in it; of a node, those of its slowest rank. In milliseconds, as on a GPU."""
    seen = read(trace)
    if "forward" not in seen.spans:
        return None
    computing, transfers = medians(seen.own("forward")), transfer_of_ranks(seen)
    nodes = []
    for name in sorted(set(seen.nodes)):
        ranks = [rank for rank, node in enumerate(seen.nodes) if node == name]
        of_rank = 1e3 * computing[ranks], 1e3 * transfers[ranks]
        if not all(np.isfinite(times).any() for times in of_rank):
            return None
        computed, transferred = (float(np.nanmax(times)) for times in of_rank)
        nodes.append({"ranks": ranks, "computing_ms": computed, "transfer_ms": transferred})
    return {"nodes": nodes}


def transfer_of_ranks(seen: Trace) -> Floats:
    """The median over each rank's collectives of what the member that came last spent in them, in seconds."""
    calls, by_call = seen.collectives, least_times(seen)
    mine = [by_call[(calls.rank == rank) & np.isfinite(by_call)] for rank in range(seen.ranks)]
    return np.array([np.median(times) if len(times) else 0.0 for times in mine])


def megatron_measures(trace: Path) -> Request | None:
    """The own time of a forward and of a backward pass stand for Megatron-LM's matrix products, and for its collectives
    the least time that a member of one of that kind and group size spent in it. It takes rates: one over seconds."""
    seen = read(trace)
    computed = {phase: medians(seen.own(phase)) for phase in ("forward", "backward") if phase in seen.spans}
    measures = [{"phase": phase, "rates": rates(seconds)} for phase, seconds in computed.items()]
    if not measures:
        return None
    measures += [{"phase": None, "rates": rates(seconds)} for seconds in transfers_by_kind(seen)]
    return {"measures": measures, "nodes": seen.nodes}


def rates(seconds: Floats) -> list[float | None]:
    return plain(1.0 / np.where(seconds > 0, seconds, np.nan))


def transfers_by_kind(seen: Trace) -> list[Floats]:
    """For each operation and size of group, each rank's median over its calls of what the member that came last spent
    in them, in seconds; NaN for whom makes no such calls."""
    calls, by_call = seen.collectives, least_times(seen)
    if not len(calls.key):
        return []
    members = np.array([len(ranks) for ranks in seen.members])[calls.group]
    found = []
    for op, size in sorted(set(zip(calls.op.tolist(), members.tolist(), strict=True))):
        mine = (calls.op == op) & (members == size) & np.isfinite(by_call)
        of_ranks = [by_call[mine & (calls.rank == rank)] for rank in range(seen.ranks)]
        found.append(np.array([np.median(each) if len(each) else np.nan for each in of_ranks]))
    return found


def least_times(seen: Trace) -> Floats:
    """For each call of a collective the least time that one of its members spent in it, in seconds; NaN: none ended."""
    calls = seen.collectives
    least = np.full(calls.key.max() + 1 if len(calls.key) else 0, np.inf)
    np.fmin.at(least, calls.key, calls.end - calls.start)
    return np.where(np.isfinite(least), least, np.nan)[calls.key]


def plain(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


FR_TRACE = Shipped(TORCH, "fr_trace.py", dumps, dumps=True)
NVRX_COLLECTIVES = Shipped(NVRX_NEWEST, "nvrx_collectives.py", dumps, dumps=True)

SHIPPED: dict[str, Shipped] = {
    "NVRx, relative scores": Shipped(NVRX, "nvrx_scores.py", nvrx_relative),
    "NVRx, individual scores": Shipped(NVRX, "nvrx_scores.py", nvrx_individual),
    "NVRx CollectiveAnalyzer": NVRX_COLLECTIVES,
    "TraceML step time": Shipped(TRACEML, "traceml.py", traceml_rows),
    "torch fr_trace": FR_TRACE,
    "DLRover node check": Shipped(DLROVER, "dlrover.py", dlrover_nodes),
    "Megatron-LM sniff test": Shipped(MEGATRON, "megatron.py", megatron_measures),
}


def installed(wanted: Callable[[Shipped], bool] = lambda tool: True) -> dict[str, Shipped]:
    """The tools that run as they ship, each installed; one that cannot be is left out, with a word why."""
    found: dict[str, Shipped] = {}
    for name, tool in SHIPPED.items():
        if not wanted(tool):
            continue
        try:
            install(tool.environment)
        except CannotInstall as why:
            print(f"{name} is left out: it cannot be installed: {why}", file=sys.stderr)
        else:
            found[name] = tool
    return found
