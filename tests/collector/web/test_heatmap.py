"""The heat map's numbers: medians, folding, missing values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.collectors import ingest

from laggard.collector.jobs.window import JobWindows
from laggard.collector.web.documents import HeatDocument
from laggard.collector.web.heatmap import MEASURES, ORDERS, MapView, heatmap_document, map_medians
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.model import JobKey
from laggard.wire import decode, encode


def _timings(make: Any, count: int, slow: int) -> JobTimings:
    windows = JobWindows()
    for first in range(0, count, 8):
        ranks = range(first, min(first + 8, count))
        ingest(windows, f"a{first}", make.node(f"n{first // 8}", ranks, slow, world_size=count), 1.0)
    return windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {})


@pytest.mark.parametrize("measure", MEASURES)
def test_every_rank_has_a_row_where_they_fit(make: Any, measure: str) -> None:
    heat = heatmap_document("1000:job-1", _timings(make, 4, slow=2), measure, rows=230)
    assert [row.first for row in heat.rows] == [0, 1, 2, 3] and heat.shown is None
    assert heat.steps == list(range(60))
    assert heat.seconds["forward"][2][0] == pytest.approx(0.15)
    assert heat.median_seconds["own"][0] == pytest.approx(0.15)
    assert decode(encode(heat), HeatDocument) == heat


def test_of_two_ranks_the_fast_one_is_the_median(make: Any) -> None:
    heat = heatmap_document("j", _timings(make, 2, slow=1))
    assert heat.median_seconds["own"][0] == pytest.approx(0.15)


def test_a_folded_row_shows_the_rank_that_stands_out(make: Any) -> None:
    timings = _timings(make, 1000, slow=421)
    heat = heatmap_document("j", timings, "own", rows=100)
    assert len(heat.rows) == 100 and heat.rows[42].count == 10 and heat.shown
    assert set(heat.shown[42]) == {421}
    assert heat.seconds["forward"][42][0] == pytest.approx(0.15)
    waiting = heatmap_document("j", timings, "waited", rows=100)
    assert waiting.shown and set(waiting.shown[42]) == {421}  # it waits least
    assert waiting.seconds["waited"][42][0] == 0


def test_a_large_job_has_fewer_rows_where_none_is_a_machine(make: Any) -> None:
    timings = _timings(make, 2000, slow=421)
    for asked, given in ((230, 154), (100, 100), (260, 250)):
        rows = heatmap_document("j", timings, "own", rows=asked).rows
        assert len(rows) == given, f"{asked} rows asked, of {rows[0].count} ranks each"


def test_cells_are_written_with_four_digits_and_no_noise(make: Any) -> None:
    timings = _timings(make, 40, slow=3)
    real = np.exp(np.random.default_rng(1).uniform(np.log(1e-4), np.log(20), timings.phase_seconds.shape))
    heat = heatmap_document("j", replace(timings, phase_seconds=real), rows=40)
    cells = np.array(heat.seconds["forward"])
    own = real[:, :, PHASES.index("forward")].T
    assert (np.abs(cells - own) <= np.maximum(5e-7, 5.1e-4 * own)).all(), "a cell lost what the page shows of it"
    text = encode(heat.seconds["forward"]).decode()
    assert max(map(len, re.findall(r"[\d.]+", text))) <= len("0.001234"), "digits that nobody sees"


def test_uneven_numbers_of_ranks_fold_too(make: Any) -> None:
    heat = heatmap_document("j", _timings(make, 31, slow=30), "own", rows=7)
    assert sum(row.count for row in heat.rows) == 31 and heat.rows[-1].last == 30


def test_a_missing_step_is_null_in_json(make: Any) -> None:
    windows = JobWindows()
    for rank, steps in ((0, (0, 1)), (1, (1, 2))):
        row = make.rank_row(rank, rows=[make.step_row(step) for step in steps])
        ingest(windows, "a", make.ranks_document("n0", [row]), 1.0)
    heat = heatmap_document("j", windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {}))
    assert b"NaN" not in encode(heat) and np.isnan(np.array(heat.seconds["waited"])[0, 2])
    assert decode(encode(heat), HeatDocument).seconds["waited"][0][2] is None


def test_a_job_without_steps_is_an_empty_map(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0)]), 1.0)
    heat = heatmap_document("j", windows.jobs[JobKey(1000, "job-1")].timings("job-1", set(), {}))
    assert heat.steps == [] and len(heat.rows) == 1


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_part_of_the_map_shows_what_the_whole_shows_there(make: Any, measure: str, order: str) -> None:
    timings = _timings(make, 64, slow=21)
    whole = heatmap_document("j", timings, measure, 64, MapView(order))
    part = heatmap_document("j", timings, measure, 64, MapView(order, 16, 24), map_medians(timings))
    assert part.rows == whole.rows[16:24] and part.median_seconds == whole.median_seconds
    assert part.seconds == {name: rows[16:24] for name, rows in whole.seconds.items()}
    folded = heatmap_document("j", timings, measure, 2, MapView(order, 16, 24))
    assert folded.shown and {rank for row in folded.shown for rank in row} <= {row.first for row in part.rows}
