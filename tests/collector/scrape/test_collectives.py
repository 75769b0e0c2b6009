"""Single collectives from agents: what is asked for, how often, and what a hostile agent may answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from msgspec import structs
from support.collectors import ingest
from support.steps import StepRow
from support.timings import job

from laggard.collector.jobs.job import COLLECTIVES_SECONDS
from laggard.collector.jobs.snapshot import unknown_location
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape import collective_rounds
from laggard.collector.scrape.collective_rounds import (
    ASK_SECONDS,
    MAX_LOOKED_RANKS,
    MAX_RANKS_A_ROUND,
    READER_SECONDS,
    CollectiveRounds,
    LookedRanks,
    Wanted,
    is_in_network,
)
from laggard.collector.scrape.validation import validate_collectives
from laggard.model import Culprit, JobKey, Note
from laggard.wire import WireError, encode
from laggard.wire.ranks import MAX_ROWS, CollectiveLane, CollectiveRow, CollectivesDocument, RankCollectives

KEY = JobKey(1000, "job-1")
LANES = (CollectiveLane("all_reduce", "dp", "dp:0-3", -1),)


def _document(ranks: tuple[int, ...] = (0, 1), **changes: Any) -> CollectivesDocument:
    rows = tuple(CollectiveRow(step, 0, step, step + 0.1, step + 0.2, 0.1, 1024) for step in range(2, 20))
    values = dict(node="n0", owner=1000, job_id="job-1", ranks=tuple(RankCollectives(it, LANES, rows) for it in ranks))
    return CollectivesDocument(**{**values, **changes})  # type: ignore[arg-type]


def _changed(**changes: Any) -> bytes:
    """A document whose first row has other values, by name."""
    tree = json.loads(encode(_document()))
    row = tree["ranks"][0]["rows"][0]
    for name, value in changes.items():
        row[CollectiveRow.__struct_fields__.index(name)] = value
    return json.dumps(tree).encode()


def test_an_agents_answer_is_taken() -> None:
    assert validate_collectives(encode(_document()), 1000, "job-1", (0, 1, 2)) == _document()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"[" * 100_000, encode(_document(schema="laggard.collectives/2")),
        encode(_document(owner=0)), encode(_document(job_id="other")), encode(_document(ranks=())) + b"x",
        encode(_document((0, 0))), encode(_document((0, 7))),
        encode(_document(ranks=(RankCollectives(0, LANES * 300, ()),))),
        encode(_document(ranks=(RankCollectives(0, (CollectiveLane("x" * 999, "dp", "dp", -1),), ()),))),
        encode(_document(ranks=(RankCollectives(0, (CollectiveLane("send", "pp", "pp", 1 << 40),), ()),))),
        encode(_document(ranks=(RankCollectives(0, LANES, _document().ranks[0].rows * (MAX_ROWS // 10)),))),
        _changed(step=-1), _changed(step=10**30), _changed(lane=1), _changed(lane=-1), _changed(seq=-1),
        _changed(start=-1.0), _changed(end=0.0), _changed(end=1e300), _changed(waited=-1.0), _changed(waited=1e300),
        _changed(size=-5), _changed(size=1 << 60), _changed(start="now"), _changed(end=None),
    ],
)  # fmt: skip
def test_a_hostile_answer_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        validate_collectives(body, 1000, "job-1", (0, 1))


def _windows(make: Any, url: str, waits: bool = True) -> JobWindows:
    """Four ranks on two machines, reported by one agent, with waits that may hide a slow link."""
    made, windows = job(4, 30, per_node=2), JobWindows()
    waited = made.waited_seconds if waits else np.zeros_like(made.waited_seconds)
    rows = []
    for rank in range(4):
        begins = 1.0 + np.concatenate(([0.0], np.cumsum(made.step_seconds[:, rank])))
        steps = [
            StepRow(int(number), begins[at], begins[at + 1], tuple(made.phase_seconds[at, rank]), waited[at, rank])
            for at, number in enumerate(made.steps)
        ]
        rows.append(make.rank_row(rank, 4, steps))
    ingest(windows, url, make.ranks_document("n0", rows), 100.0)
    return windows


def test_a_job_is_asked_now_and_then_and_only_where_transfers_take_time(make: Any) -> None:
    rounds = CollectiveRounds(_windows(make, "http://a"), 5.0)
    assert rounds.wanted(["http://a"], 100.0) == (Wanted(KEY, {"http://a": (0, 1, 2, 3)}),)
    assert rounds.wanted(["http://a"], 100.0 + ASK_SECONDS / 2) == ()
    assert rounds.wanted([], 100.0 + ASK_SECONDS) == (), "its agent is silent"
    assert rounds.wanted(["http://a"], 100.0 + 2 * ASK_SECONDS)
    assert CollectiveRounds(_windows(make, "http://a", waits=False), 5.0).wanted(["http://a"], 100.0) == ()


def _several(make: Any, count: int, calm: int = 0) -> JobWindows:
    """So many such jobs, and `calm` ones without waits before them."""
    windows = JobWindows()
    for number in range(calm + count):
        for key, held in _windows(make, f"http://a{number}", waits=number >= calm).jobs.items():
            windows.jobs[JobKey(key.owner, f"job-{number}")] = held
    return windows


def test_jobs_that_need_no_question_cost_the_others_no_round(make: Any) -> None:
    windows = _several(make, 3, calm=20)
    asked = CollectiveRounds(windows, 5.0).wanted([f"http://a{number}" for number in range(23)], 100.0)
    assert [each.key.job_id for each in asked] == ["job-20", "job-21", "job-22"]


def test_no_more_jobs_are_asked_in_a_round_than_ranks_allow_and_all_in_turn(make: Any) -> None:
    most = MAX_RANKS_A_ROUND // 4
    windows, urls = _several(make, most + 10), [f"http://a{number}" for number in range(most + 10)]
    rounds = CollectiveRounds(windows, 5.0)
    turns: list[list[str]] = []
    while sum(map(len, turns)) < most + 10:
        turns.append([each.key.job_id for each in rounds.wanted(urls, 100.0 + len(turns))])
        assert turns[-1] and len(turns[-1]) <= most
    assert sorted(name for turn in turns for name in turn) == sorted(key.job_id for key in windows.jobs)


def test_a_job_with_a_slow_link_is_asked_before_the_others(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_rounds, "MAX_RANKS_A_ROUND", 4)
    windows, urls = _several(make, 6), [f"http://a{number}" for number in range(6)]
    rounds, slow = CollectiveRounds(windows, 5.0), JobKey(1000, "job-4")
    asked = [rounds.wanted(urls, now, {slow})[0].key for now in (100.0, 101.0, 100.0 + ASK_SECONDS)]
    assert asked[0] == asked[2] == slow != asked[1]


@pytest.mark.parametrize(
    ("culprits", "notes", "is_so"),
    [((Culprit("slow_link", (1,)),), (), True), ((), (Note("slow_transfers", "x"),), True),
     ((Culprit("slow_compute", (1,)),), (Note("stale", "x"),), False)],
)  # fmt: skip
def test_a_verdict_on_the_network(culprits: tuple[Culprit, ...], notes: tuple[Note, ...], is_so: bool) -> None:
    assert is_in_network(structs.replace(unknown_location("", ""), culprits=culprits, notes=notes)) is is_so


def _asked(agent: Any, windows: JobWindows) -> None:
    asyncio.run(CollectiveRounds(windows, 60.0).ask([Wanted(KEY, {agent.url: (0, 1, 2, 3)})], 100.0))


def test_what_an_agent_answers_is_part_of_the_jobs_timings_for_a_while(
    fake_agent: Callable[..., Any], make: Any
) -> None:
    agent = fake_agent(make.node("n0", [0]))
    agent.collectives = _document((0, 1, 2, 3))
    windows = _windows(make, agent.url)
    _asked(agent, windows)
    (query,) = [urlsplit(path).query for path in agent.requests]
    assert parse_qs(query) == {"owner": ["1000"], "job": ["job-1"], "rank": ["0", "1", "2", "3"]}
    held = windows.jobs[KEY]
    assert held.timings("job-1", {agent.url}, {}).collectives is not None
    held.updated_at += COLLECTIVES_SECONDS + 1
    assert held.timings("job-1", {agent.url}, {}).collectives is None


@pytest.mark.parametrize("answer", [None, b"garbage", encode(_document((9,)))])
def test_an_agent_that_has_no_such_route_or_lies_costs_its_answer_alone(
    fake_agent: Callable[..., Any], make: Any, answer: bytes | None
) -> None:
    agent = fake_agent(make.node("n0", [0]))
    agent.collectives = answer
    windows = _windows(make, agent.url)
    _asked(agent, windows)
    assert windows.jobs[KEY].timings("job-1", {agent.url}, {}).collectives is None


AGENT = "http://a:19400"


def _windows_of_ranks(make: Any, ranks: int = 4, **changes: Any) -> JobWindows:
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
    looked = LookedRanks(_windows_of_ranks(make))
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
    looked = LookedRanks(_windows_of_ranks(make, 128))
    for rank in range(128):
        looked.look(KEY, [rank], 10.0)
    (wanted,) = looked.wanted([AGENT], 11.0)
    assert wanted.ranks == {AGENT: tuple(range(128 - MAX_LOOKED_RANKS, 128))}, "those that were looked at last"
    over = LookedRanks(_windows_of_ranks(make, state="finished"))
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
