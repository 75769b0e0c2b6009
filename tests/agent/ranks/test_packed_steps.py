"""The steps of real rank files, as columns and as rows."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laggard.agent.ranks.reader import RankFiles
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.wire import encode

Start = Callable[..., Any]


def test_columns_have_the_steps_of_the_rows_in_the_order_of_the_ranks(rank_dir: Path, start_rank: Start) -> None:
    for rank, steps in ((3, 2), (0, 3), (1, 0)):
        start_rank(rank=rank).do(*["step"] * steps)
    files = RankFiles(str(rank_dir), "n0")
    packed, rows = (validate_ranks_answer(encode(files.read(0, packed=each))) for each in (True, False))
    assert [row.rank for row in packed.document.ranks] == [row.rank for row in rows.document.ranks]
    assert [len(row.rows) for row in rows.document.ranks] == [len(table) for table in packed.steps]
    counts = {row.rank: len(table) for row, table in zip(packed.document.ranks, packed.steps, strict=True)}
    assert counts == {0: 3, 1: 0, 3: 2}
    assert [table.tobytes() for table in packed.steps] == [table.tobytes() for table in rows.steps]
    assert not any(row.rows for row in packed.document.ranks) and rows.document.steps is None
    assert files.read(packed=True).steps is None, "no steps were asked for"


def test_a_real_agent_packs_for_who_asks(start_agent: Start, start_rank: Start) -> None:
    start_rank(rank=0).do("step", "step")
    agent = start_agent()
    asked = {word: agent.request(f"/api/v1/ranks?since=0{word}") for word in ("", "&packed=0", "&packed=1")}
    assert all(it.status == 200 for it in asked.values())
    for plain in (asked[""].json(), asked["&packed=0"].json()):
        assert len(plain["ranks"][0]["rows"]) == 2 and plain["steps"] is None
    steps = asked["&packed=1"].json()["steps"]
    assert steps["counts"] == [2] and asked["&packed=1"].json()["ranks"][0]["rows"] == []
    assert len(base64.b64decode(steps["columns"])) == 2 * sum(steps["widths"])
    assert agent.request("/api/v1/ranks?since=0&packed=2").status == 400
