"""Whose collectives are asked for because somebody looks: those ranks, while somebody does, and no verdict changes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support.collectors import ingest

from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.collective_rounds import MAX_LOOKED_RANKS, READER_SECONDS, LookedRanks, Wanted
from laggard.model import JobKey
from laggard.wire import encode
from laggard.wire.ranks import CollectiveLane, CollectiveRow, CollectivesDocument, RankCollectives

KEY = JobKey(1000, "job-1")
AGENT = "http://a:19400"


def _windows(make: Any, ranks: int = 4, **changes: Any) -> JobWindows:
    windows = JobWindows()
    ingest(windows, AGENT, make.node("n0", range(ranks), world_size=ranks, **changes), 1.0)
    return windows


def _collectives(rank: int) -> RankCollectives:
    """An all_reduce at the end of each of the steps that make.node() has, of which all but rank 2 wait 0.1 s."""
    waited = 0.0 if rank == 2 else 0.1
    lanes = (CollectiveLane("all_reduce", "dp", "dp:0-3", -1),)
    rows = [CollectiveRow(it, 0, it, 100.15 + 0.25 * it, 100.25 + 0.25 * it, waited, 1024) for it in range(60)]
    return RankCollectives(rank, lanes, tuple(rows))


def test_ranks_are_asked_for_while_somebody_looks(make: Any) -> None:
    looked = LookedRanks(_windows(make))
    assert looked.wanted([AGENT], 10.0) == []
    assert looked.look(KEY, [1, 3, 77], 10.0) == {}
    assert looked.wanted([AGENT], 11.0) == [Wanted(KEY, {AGENT: (1, 3)})], "rank 77 is none of the job"
    assert looked.wanted([], 11.0) == [], "its agent is silent"
    looked.keep(KEY, [_collectives(1)])
    (known,) = looked.look(KEY, [1], 25.0).values()
    assert known.collectives == _collectives(1) and len(known.steps) == 60
    assert looked.wanted([AGENT], 10.0 + READER_SECONDS) == [Wanted(KEY, {AGENT: (1,)})], "nobody looks at rank 3 now"
    assert looked.wanted([AGENT], 25.0 + READER_SECONDS) == []
    assert looked.look(KEY, [1], 50.0) == {}, "what nobody looked at is not kept"


def test_many_readers_are_bounded_and_a_job_that_is_over_is_not_asked(make: Any) -> None:
    looked = LookedRanks(_windows(make, 128))
    for rank in range(128):
        looked.look(KEY, [rank], 10.0)
    (wanted,) = looked.wanted([AGENT], 11.0)
    assert wanted.ranks == {AGENT: tuple(range(128 - MAX_LOOKED_RANKS, 128))}, "those that were looked at last"
    over = LookedRanks(_windows(make, state="finished"))
    over.look(KEY, [0], 10.0)
    assert over.wanted([AGENT], 11.0) == []


@pytest.mark.slow
def test_a_collector_asks_for_what_a_timeline_shows(watching: Any, fake_agent: Any, make: Any) -> None:
    class Agent:
        asked: list[list[str]] = []

    agent = fake_agent(make.node("n0", range(4), slow=2), make.report("n0"))
    answer = agent.answer

    def with_collectives(path: str) -> bytes | None:
        if not path.startswith("/api/v1/collectives"):
            return answer(path)  # type: ignore[no-any-return]
        Agent.asked.append(parse_qs(urlsplit(path).query)["rank"])
        return encode(CollectivesDocument("n0", 1000, "job-1", tuple(_collectives(int(it)) for it in Agent.asked[-1])))

    agent.answer = with_collectives
    collector = watching(agent)
    collector.wait_until(lambda: collector.get("/api/v1/location").json()["verdict"] == "fail")
    before = collector.get("/api/v1/location").json()
    assert Agent.asked == [], "nobody looks"
    collector.wait_until(lambda: collector.get("/api/v1/timeline", ranks="3").json()["groups"])
    told = collector.get("/api/v1/timeline", ranks="3,2").json()
    collector.wait_until(lambda: {"2", "3"} <= set(Agent.asked[-1]))
    told = collector.get("/api/v1/timeline", ranks="3,2").json()
    (wait,) = told["groups"]
    assert (wait["op"], wait["group"], wait["longest_rank"], wait["least_rank"]) == ("all_reduce", "dp:0-3", 3, 2)
    assert wait["count"] == 8 and wait["longest"] == pytest.approx(0.8) and wait["least"] == 0
    (row,) = [it for it in told["rows"] if it["rank"] == 3]
    assert row["collectives"][0] == [0, "all_reduce", "dp:0-3", None, 0.15, 0.25, 0.1], "within its step"
    assert collector.get("/api/v1/location").json()["culprits"] == before["culprits"]
