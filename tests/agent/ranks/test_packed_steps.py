"""The steps of real rank files, as columns."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laggard.agent.ranks.reader import RankFiles
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.wire import encode

Start = Callable[..., Any]


def test_columns_have_the_steps_in_the_order_of_the_ranks(rank_dir: Path, start_rank: Start) -> None:
    for rank, steps in ((3, 2), (0, 3), (1, 0)):
        start_rank(rank=rank).do(*["step"] * steps)
    files = RankFiles(str(rank_dir), "n0")
    told = validate_ranks_answer(encode(files.read(0)))
    counts = {row.rank: len(table) for row, table in zip(told.document.ranks, told.steps, strict=True)}
    assert counts == {0: 3, 1: 0, 3: 2}
    assert files.read().steps is None, "no steps were asked for"


def test_a_real_agent_packs_them(start_agent: Start, start_rank: Start) -> None:
    start_rank(rank=0).do("step", "step")
    agent = start_agent()
    steps = agent.request("/api/v1/ranks?since=0").json()["steps"]
    assert steps["counts"] == [2] and len(base64.b64decode(steps["columns"])) == 2 * sum(steps["widths"])
    assert agent.request("/api/v1/ranks").json()["steps"] is None
