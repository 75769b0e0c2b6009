"""Clocks change no verdict: each machine's may be off by any time, and be faster or slower than the others'."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Location
from laggard.recording.reader import read_recording

PIPELINE = "dp=4,pp=4,schedule=1f1b,micro=4,gpus_per_node=4"
COPIED_SENDS = "dp=4,pp=4,schedule=interleaved,micro=8,chunks=2,gpus_per_node=4"
MACHINES = 4

offsets = st.lists(st.floats(-1e6, 1e6), min_size=MACHINES, max_size=MACHINES)
drifts = st.lists(st.floats(-2e-4, 2e-4), min_size=MACHINES, max_size=MACHINES)


@cache
def recorded(layout: str, form: str, fault: Fault | None) -> JobTimings:
    with TemporaryDirectory() as folder:
        case = Case(layout, form, seed=11, steps=16, faults=(fault,) if fault else ())
        write(simulate(case), Path(folder))
        return read_recording([Path(folder) / "trace"]).timings


def with_clocks(timings: JobTimings, offset: list[float], drift: list[float]) -> JobTimings:
    """The same job, each machine on another clock."""
    machine = np.array([int((node or "n0")[1:]) for node in timings.nodes])
    rate, ahead = 1 + np.array(drift)[machine], np.array(offset)[machine]
    collectives = timings.collectives
    assert collectives is not None
    column = collectives.column
    return dataclasses.replace(
        timings,
        step_seconds=timings.step_seconds * rate,
        phase_seconds=timings.phase_seconds * rate[:, None],
        waited_seconds=timings.waited_seconds * rate,
        collectives=dataclasses.replace(
            collectives,
            start=collectives.start * rate[column] + ahead[column],
            end=collectives.end * rate[column] + ahead[column],
            waited=collectives.waited * rate[column],
        ),
    )


def answer(location: Location) -> tuple[object, ...]:
    named = tuple((each.kind, each.ranks, each.phase, each.since_step) for each in location.culprits)
    return location.verdict, named, tuple(note.kind for note in location.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "form", "fault"),
    [
        (PIPELINE, "host", None),
        (PIPELINE, "host", Fault("slow_gpu", 0.1, rank=6)),
        (PIPELINE, "sparse", Fault("slow_nic", 0.2, rank=6)),
        (PIPELINE, "device", Fault("hang_compute", rank=6)),
        (COPIED_SENDS, "host", Fault("slow_link", 0.2)),
    ],
)
@given(offset=offsets, drift=drifts)
@settings(max_examples=8, deadline=None)
def test_no_clock_changes_the_verdict(
    layout: str, form: str, fault: Fault | None, offset: list[float], drift: list[float]
) -> None:
    timings = recorded(layout, form, fault)
    assert bool(locate(timings).culprits) == bool(fault)
    assert answer(locate(with_clocks(timings, offset, drift))) == answer(locate(timings))


@pytest.mark.parametrize("form", ["host", "sparse"])
@pytest.mark.parametrize("faults", [(), (Fault("slow_gpu", 0.2, rank=6),)])
def test_clocks_that_are_set_back_in_mid_job_change_no_verdict(
    tmp_path: Path, form: str, faults: tuple[Fault, ...]
) -> None:
    """What came later then overlaps earlier steps, and would be taken for waits of these."""
    layout = "dp=4,tp=2,pp=2,schedule=1f1b,micro=4,gpus_per_node=4"
    write(simulate(Case(layout, form, seed=11, steps=40, faults=faults)), tmp_path)
    for rank in (0, 5):
        set_back(tmp_path / "trace" / f"rank-{rank}.jsonl")
    recording = read_recording([tmp_path / "trace"])
    assert [culprit.ranks for culprit in locate(recording.timings).culprits] == [(fault.rank,) for fault in faults]
    assert any("the clock of ranks 0 and 5 was set back" in gap for gap in recording.gaps), recording.gaps


def set_back(file: Path) -> None:
    """Sets the clock back by twelve and a half steps at step 20."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    ends = {record["step"]: record["end"] for record in records if "step" in record}
    back = 12.5 * (ends[15] - ends[5]) / 10
    for record in records:
        if record.get("step", 0) >= 20:
            record |= {name: record[name] - back for name in ("issued", "start", "end") if name in record}
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
