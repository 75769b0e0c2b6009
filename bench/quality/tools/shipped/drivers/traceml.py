"""TraceML's step-time diagnosis, by its analyser and its rules with the policy of its final summary, on rows such as
its own database has. Only what it says of one rank counts: that a job is bound by its input accuses nobody."""

from __future__ import annotations

from typing import Any

from traceml_ai.diagnostics.step_time import SUMMARY_STEP_TIME_POLICY, diagnose_step_time_window
from traceml_ai.step_time.analysis import StepTimeAnalyzer
from traceml_ai.step_time.model import StepTimeClockValues, StepTimeRepositorySnapshot, StepTimeSourceRow

KINDS = {
    "STRAGGLER": ("slow", None),
    "INPUT_STRAGGLER": ("slow_input", "input"),
    "COMPUTE_STRAGGLER": ("slow_compute", "forward"),
    "H2D_STRAGGLER": ("slow_input", "input"),
}


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """`rows`: of each rank and step [rank, step, {metric: milliseconds}]. `strategy`: ddp or fsdp."""
    rows = tuple(
        StepTimeSourceRow(
            number, rank, step, {metric: StepTimeClockValues(cpu_ms=value) for metric, value in metrics.items()}
        )
        for number, (rank, step, metrics) in enumerate(request["rows"])
    )
    ranks = tuple(sorted({row.global_rank for row in rows}))
    snapshot = StepTimeRepositorySnapshot(rows, ranks, training_strategy=request["strategy"])
    window = StepTimeAnalyzer().analyze(snapshot, window_size=None)
    said = diagnose_step_time_window(window, policy=SUMMARY_STEP_TIME_POLICY)
    found = []
    for issue in said.issues:
        if issue.kind in KINDS:
            kind, phase = KINDS[issue.kind]
            found.append({"kind": kind, "ranks": list(issue.ranks), "phase": phase, "recoverable": issue.score})
    return found
