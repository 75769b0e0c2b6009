"""Simulated jobs, located."""

from pathlib import Path

from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.verdict import locate
from laggard.model import Location
from laggard.recording.reader import read_recording


def located(folder: Path, layout: str, form: str, seed: int, steps: int, *faults: Fault) -> Location:
    """What is found in the recording of such a job, which is left in the folder beside its truth.json."""
    write(simulate(Case(layout, form, seed=seed, faults=faults, steps=steps)), folder)
    return locate(read_recording([folder / "trace"]).timings)
