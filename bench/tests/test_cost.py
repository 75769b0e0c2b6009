"""The benchmark of the ledger: its truth uses nothing of laggard, and a week whose verdicts are right is told right."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from cost_weeks import planted
from cost_weeks.measured_shares import Share
from cost_weeks.planted import WEEK, Job, Slow, Stop, true_gpu_hours
from cost_weeks.watched import MONDAY, watched

from laggard.collector.ledger.ledger import ledger

RIGHT = [Share("GPU", size, size, size) for size in np.linspace(0.02, 0.6, 30)]


def test_the_truth_is_made_from_the_plan_alone() -> None:
    tree = ast.parse(Path(planted.__file__).read_text(encoding="utf-8"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not [name for name in imported if name.startswith("laggard")]


def test_the_truth_counts_no_second_twice() -> None:
    slow = (Slow(1000, 2000, 0.3, 1), Slow(1500, 2500, 0.5, 2))
    stop = Stop(5000, 5600, 400, True, 3, 10)
    job = Job(0, 36, 0, 20000, 1.0, 128, 900, True, slow, (stop,))
    assert true_gpu_hours([job._replace(stops=())]) == pytest.approx((500 * 0.3 + 1000 * 0.5) / 100)
    assert true_gpu_hours([job]) == pytest.approx((500 * 0.3 + 1000 * 0.5 + (5000 - 4500) + 1000) / 100)
    assert true_gpu_hours([job._replace(seen=False)]) == pytest.approx((500 * 0.3 + 1000 * 0.5 + 1000) / 100)


@pytest.mark.parametrize("number", range(3))
def test_a_week_whose_verdicts_are_right_is_told_right(number: int) -> None:
    jobs = planted.week(np.random.default_rng([11, number]))
    seen = watched(jobs, RIGHT, np.random.default_rng([12, number]))
    found = ledger(seen.losses, seen.runs, MONDAY, MONDAY + WEEK).total
    true = true_gpu_hours(jobs)
    assert found.least <= true <= found.most and found.likely == pytest.approx(true, rel=0.1)
