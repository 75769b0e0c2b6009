"""The error of the share of the step time that a verdict says a culprit takes: cases of the simulator, judged by the
real localisation, beside the simulator's own truth."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.scratch import scratch
from quality.matrix import Entry, entries
from quality.run import first_possible
from simulator.recording import write

from laggard.locate import verdict
from laggard.recording.reader import read_recording

ONSET = "from mid-run"
"""The rows of the matrix whose truth is of a part of the recording: left out."""


class Share(NamedTuple):
    """`true`: what all planted faults of the case take of the step time; `said`: what the verdict says that its
    culprits take, 0 where it names none."""

    row: str
    size: float
    true: float
    said: float


def measured(seed: int, each: int, processes: int, rows: Sequence[str] | None = None) -> list[Share]:
    """The shares of `each` cases of every slow fault and size, or of those of some rows of the matrix."""
    asked = [one for one in entries(seed, each, 0, 0) if one.size > 0 and ONSET not in one.row]
    asked = [one for one in asked if not rows or one.row in rows]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return [share for share in pool.imap_unordered(_measure, asked, chunksize=4) if share is not None]


def _measure(entry: Entry) -> Share | None:
    simulated = first_possible(entry)
    if simulated is None:
        return None
    culprits: Sequence[dict[str, float]] = simulated.truth["culprits"]
    folder = Path(tempfile.mkdtemp(prefix="laggard-cost-", dir=scratch()))
    try:
        write(simulated, folder)
        found = verdict.locate(read_recording([folder / "trace"]).timings)
    finally:
        shutil.rmtree(folder)
    said = sum(culprit.recoverable_ratio or 0.0 for culprit in found.culprits)
    return Share(entry.row, entry.size, sum(it.get("recoverable_ratio", 0.0) for it in culprits), min(said, 1.0))
