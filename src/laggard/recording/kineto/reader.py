"""Reads the PyTorch profiler traces (Kineto) of a job: files of JSON, packed or not, one or more a rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from laggard.errors import UsageError
from laggard.recording.kineto.job import job_of_traces
from laggard.recording.kineto.stream import NoTrace
from laggard.recording.kineto.trace import Trace, read_trace
from laggard.recording.recorded_timings import RecordedTimings, read_each
from laggard.text.words import ranks_text


def read_traces(paths: Sequence[Path], gaps: list[str]) -> RecordedTimings:
    """The job that was profiled. Raises UsageError where the traces are of two jobs, or none of them can be read."""
    traces = read_each(paths, read_trace, NoTrace, gaps)
    _refuse_two_jobs(traces)
    traces.sort(key=lambda trace: (trace.rank, min(trace.steps, default=0)))
    job = job_of_traces(traces)
    timings = dataclasses.replace(job.timings(), profiled=True)
    return RecordedTimings(timings, (*gaps, *job.gaps, *_lacking(traces)))


def _refuse_two_jobs(traces: Sequence[Trace]) -> None:
    """Raises UsageError where a rank has two traces of one step, or the traces tell of worlds of different sizes."""
    by_world: dict[str, list[Trace]] = {}
    for trace in traces:
        if trace.world_size:
            by_world.setdefault(f"{trace.world_size} ranks", []).append(trace)
    if len(by_world) > 1:
        raise UsageError(f"the traces are of jobs of different sizes: name those of one, {_choices(by_world)}")
    seen: dict[tuple[int, int], Trace] = {}
    for trace in traces:
        for step in trace.steps:
            other = seen.setdefault((trace.rank, step), trace)
            if other is not trace:
                raise UsageError(
                    f"rank {trace.rank} has two traces of step {step}, as of two jobs: give one, "
                    f"{other.path} or {trace.path}"
                )


def _choices(sets: Mapping[str, Sequence[Trace]]) -> str:
    return " or ".join(
        f"{name} ({traces[0].path}{', ...' if len(traces) > 1 else ''})" for name, traces in sorted(sets.items())[:4]
    )


def _lacking(traces: Sequence[Trace]) -> Iterable[str]:
    """The facts that the traces do not tell."""
    for trace in traces:
        yield from trace.lacks
    without_steps = {trace.rank for trace in traces if not trace.steps}
    if without_steps:
        yield f"the traces of {ranks_text(without_steps)} have no steps: call the profiler's step() after each"
    silent = {trace.rank for trace in traces if not trace.collectives}
    if silent:
        yield f"the traces of {ranks_text(silent)} have no kernel of NCCL and no collective of gloo"
    mixed = {trace.on_device for trace in traces}
    if len(mixed) > 1:
        yield "some traces have kernels and others have not: profile all ranks with the same activities"
    if any(not each.group for trace in traces for each in trace.collectives):
        yield "collectives do not tell their process group (older torch, or gloo): no link is looked at"
