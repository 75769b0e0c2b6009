"""Reads the PyTorch profiler traces (Kineto) of a job, files of JSON, to a recorded job. Its timings follow as from
any recording.

Collectives match by torch's number of them. Where the traces have none, by their place in the trace, if all members of
the group that are seen have equally many in the same steps; else they match with none, and still are waits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.errors import UsageError
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text
from laggard.recording.job import RecordedJob
from laggard.recording.kineto_stream import NoTrace
from laggard.recording.kineto_trace import Group, Trace, read_trace
from laggard.recording.part import RecordedPart
from laggard.recording.recorded_timings import RecordedTimings, read_each
from laggard.recording.records import UNKNOWN, Head, RankLine, Table
from laggard.recording.records import Group as DeclaredGroup

_UNNAMED = "collectives"
_STEP_STRIDE = 1 << 24
_PAIRS = (OPS.index("send"), OPS.index("recv"))


def job_of_traces(traces: Sequence[Trace]) -> RecordedJob:
    """The job whose ranks wrote `traces`."""
    job = RecordedJob()
    countable = _countable(traces)
    for trace in traces:
        part = job.begin_part(trace.path, Head(1))
        part.lines[trace.rank] = RankLine(
            trace.rank,
            node=trace.node,
            world_size=trace.world_size or None,
            groups={_name(group): DeclaredGroup(_role(group), list(group.members)) for group in trace.groups.values()},
        )
        _add_steps(part, trace)
        _add_collectives(part, trace, countable)
    return job


def _add_steps(part: RecordedPart, trace: Trace) -> None:
    numbers = sorted(trace.steps)
    bounds = [trace.steps[number] for number in numbers]
    part.columns.steps.append(
        {
            "rank": np.full(len(numbers), trace.rank, np.int32),
            "step": np.array(numbers, np.int64),
            "start": np.array([each.start for each in bounds], np.float64),
            "end": np.array([each.end for each in bounds], np.float64),
            "own": np.full(len(numbers), -1, np.int32),
            "work": np.zeros(len(numbers)),
        }
    )
    spans: Table = {
        "rank": np.full(len(trace.spans), trace.rank, np.int32),
        "phase": np.array([phase for phase, _ in trace.spans], np.int8),
        "start": np.array([when.start for _, when in trace.spans], np.float64),
        "end": np.array([when.end for _, when in trace.spans], np.float64),
    }
    spans["step"] = _steps_at(spans["start"], trace)
    known = spans["step"] >= 0
    part.columns.spans.append({name: values[known] for name, values in spans.items()})


def _add_collectives(part: RecordedPart, trace: Trace, countable: set[tuple[str, int, int]]) -> None:
    names = part.columns.group_names
    groups = [_group_name(each.group, trace) for each in trace.collectives]
    first_step = min(trace.steps, default=0)
    counts: Counter[tuple[str, int]] = Counter()
    numbers = []
    for group, each in zip(groups, trace.collectives, strict=True):
        place = counts[group, each.op] + first_step * _STEP_STRIDE
        counts[group, each.op] += 1
        usable = (group, each.op, first_step) in countable
        numbers.append(each.number if each.number >= 0 else place if usable else UNKNOWN)
    count = len(groups)
    table: Table = {
        "rank": np.full(count, trace.rank, np.int32),
        "group": np.array([names.setdefault(group, len(names)) for group in groups], np.int32),
        "op": np.array([each.op for each in trace.collectives], np.int8),
        "seq": np.array(numbers, np.int64),
        "bytes": np.array([each.size for each in trace.collectives], np.int64),
        "peer": np.full(count, -1, np.int32),
        "start": np.array([each.start for each in trace.collectives], np.float64),
        "end": np.array([each.end for each in trace.collectives], np.float64),
        "waited": np.array([each.waited for each in trace.collectives], np.float64),
    }
    table["step"] = _steps_at(table["start"], trace)
    table["op"] = np.where(np.isin(table["op"], _PAIRS), UNKNOWN, table["op"]).astype(np.int8)  # no peer is told
    known = table["step"] >= 0
    part.columns.collectives.append({name: values[known] for name, values in table.items()})


def _steps_at(times: NDArray[np.float64], trace: Trace) -> NDArray[np.int64]:
    """The step in which each of `times` lies; -1 where it is none."""
    numbers = np.array(sorted(trace.steps), np.int64)
    if not len(numbers):
        return np.full(len(times), UNKNOWN, np.int64)
    starts = np.array([trace.steps[number].start for number in numbers.tolist()])
    ends = np.array([trace.steps[number].end for number in numbers.tolist()])
    place = np.searchsorted(starts, times, "right") - 1
    return np.where((place >= 0) & (times <= ends[place]), numbers[place], UNKNOWN)


def _countable(traces: Sequence[Trace]) -> set[tuple[str, int, int]]:
    """The groups, operations and first steps of which all members that are seen have equally many."""
    counts: dict[tuple[str, int, int], dict[int, int]] = {}
    members: dict[str, set[int]] = {}
    for trace in traces:
        first_step = min(trace.steps, default=0)
        here = Counter((_group_name(each.group, trace), each.op) for each in trace.collectives)
        for (group, op), count in here.items():
            counts.setdefault((group, op, first_step), {})[trace.rank] = count
        for declared in trace.groups.values():
            members.setdefault(_name(declared), set()).update(declared.members)
    seen = {trace.rank for trace in traces}
    return {
        key
        for key, by_rank in counts.items()
        if members.get(key[0]) and by_rank.keys() >= members[key[0]] & seen and len(set(by_rank.values())) == 1
    }


def _group_name(name: str, trace: Trace) -> str:
    group = trace.groups.get(name)
    return _name(group) if group else _UNNAMED


def _name(group: Group) -> str:
    ranks = group.members
    span = f"{ranks[0]}-{ranks[-1]}({len(ranks)})" if ranks else "?"
    return f"{_role(group)}:{span}#{group.name}"


def _role(group: Group) -> str:
    description = group.description.lower()
    return {"default_pg": "world", "": "group", "undefined": "group"}.get(description, description)


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
    by_world = grouped((it for it in traces if it.world_size), lambda trace: f"{trace.world_size} ranks")
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
