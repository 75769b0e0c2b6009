"""What of a recording each tool that runs as it ships is given, and the tools by their names in the tables.

Where a tool measures something that a recording has in another form, the nearest is taken, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quality.tools.shipped.environments import NVRX, NVRX_NEWEST, TORCH, TRACEML
from quality.tools.shipped.process import Request, Shipped
from quality.trace import Trace, read

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


def plain(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


FR_TRACE = Shipped(TORCH, "fr_trace.py", dumps, dumps=True)
NVRX_COLLECTIVES = Shipped(NVRX_NEWEST, "nvrx_collectives.py", dumps, dumps=True)

SHIPPED: dict[str, Any] = {
    "NVRx, relative scores": Shipped(NVRX, "nvrx_scores.py", nvrx_relative),
    "NVRx, individual scores": Shipped(NVRX, "nvrx_scores.py", nvrx_individual),
    "NVRx CollectiveAnalyzer": NVRX_COLLECTIVES,
    "TraceML step time": Shipped(TRACEML, "traceml.py", traceml_rows),
    "torch fr_trace": FR_TRACE,
}
