"""Stacks from agents: which ranks are asked and how often, what is held, and what a hostile agent may answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.collectors import ingest
from support.stack_documents import sampled

from laggard.collector.jobs.job import HeldStacks, Job
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape import stack_rounds
from laggard.collector.scrape.stack_rounds import ASK_SECONDS, LOOK_SECONDS, StackChoice, StackRounds, drop_beyond
from laggard.collector.scrape.validation import validate_asked, validate_stacks
from laggard.collector.web.signed_requests import MAX_ANSWER_BYTES, stacks_document
from laggard.model import Culprit, JobKey, Location, Note, Verdict, Window
from laggard.stacks.sampled import STALLED, Counted, Frame, Thread
from laggard.wire import WireError, encode
from laggard.wire.stacks import MissingStacks, StacksAsked, StacksDocument, rank_stacks

KEY = JobKey(1000, "job-1")
TOKEN = "correct horse battery staple"
IDENT = "0123456789abcdef"


def document(ranks: tuple[int, ...] = (0, 1), **changes: Any) -> StacksDocument:
    told = tuple(rank_stacks(sampled(rank, 0.5, job_id="job-1", ask=IDENT)) for rank in ranks)
    return StacksDocument(**{**dict(owner=1000, job_id="job-1", ranks=told, node="n0"), **changes})  # type: ignore[arg-type]


def location(*culprits: Culprit, notes: tuple[Note, ...] = ()) -> Location:
    verdict = Verdict.FAIL if culprits else Verdict.UNKNOWN
    return Location(verdict, "job-1", 8, 8, Window(), None, culprits, notes)


def job_of(make: Any, agents: dict[str, range], world_size: int) -> tuple[JobWindows, Job]:
    windows = JobWindows()
    for url, ranks in agents.items():
        ingest(windows, url, make.node(url, ranks, world_size=world_size), 0.0)
    return windows, windows.jobs[KEY]


def changed(**changes: Any) -> bytes:
    tree = json.loads(encode(document()))
    tree["ranks"][0].update(changes)
    return json.dumps(tree).encode()


def test_an_agents_answer_is_taken() -> None:
    missing = (MissingStacks(2, "it has \x1b ended"),)
    found, told = validate_stacks(encode(document(missing=missing)), 1000, "job-1", (0, 1, 2))
    assert sorted(found) == [0, 1] and found[0].training.stacks[0].frames[0].function == "tokenize"
    assert told == (MissingStacks(2, "it has ? ended"),)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"[" * 100_000, encode(document(schema="laggard.stacks/2")), encode(document(owner=0)),
        encode(document(job_id="other")), encode(document((0, 0))), encode(document((0, 7))),
        encode(document(missing=(MissingStacks(9, "gone"),))), encode(document(missing=(MissingStacks(0, "x"),) * 9)),
        changed(job_id="other"), changed(why="murdered"), changed(at=-1), changed(at=1e99), changed(pid=-1),
        changed(threads=[]), changed(frames=[]), changed(frames=[["f", "p", -1, ""]] * 9), changed(rank="0"),
        changed(threads=[{"name": "x", "pid": 0, "stacks": [{"times": 1, "frames": [99]}]}]),
        changed(threads=[{"name": "x", "pid": 0, "stacks": [{"times": 1, "frames": []}]}]),
    ],
)  # fmt: skip
def test_what_no_agent_answers_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        validate_stacks(body, 1000, "job-1", (0, 1))


@pytest.mark.parametrize(
    "changes",
    [{"idents": ()}, {"idents": ("x",)}, {"idents": (IDENT, IDENT)}, {"ranks": (0, 9)}, {"owner": 1}, {"schema": "x"}],
)
def test_an_answer_to_an_ask_is_checked(changes: dict[str, Any]) -> None:
    told = StacksAsked(1000, "job-1", (IDENT,), (0, 1), 10.0)
    assert validate_asked(encode(told), 1000, "job-1", (0, 1)) == told
    with pytest.raises(WireError):
        validate_asked(encode(structs.replace(told, **changes)), 1000, "job-1", (0, 1))


def test_a_slow_rank_is_asked_with_two_peers_once_in_five_minutes(make: Any) -> None:
    _, job = job_of(make, {"http://a": range(4), "http://b": range(4, 8)}, 8)
    choice, answering = StackChoice(), {"http://a", "http://b"}
    slow = location(Culprit("slow_compute", (3,)))
    wanted = choice.wanted(KEY, job, slow, answering, 1000.0)
    assert wanted is not None and wanted.ranks == (3, 2, 4) and wanted.samples
    assert choice.wanted(KEY, job, slow, answering, 1000.0 + ASK_SECONDS - 1) is None
    other = location(Culprit("slow_input", (5,)), Culprit("slow_compute", (3,)))
    wanted = choice.wanted(KEY, job, other, answering, 1001.0)  # another culprit is another question
    assert wanted is not None and wanted.ranks == (5, 4, 6)
    assert choice.wanted(KEY, job, slow, answering, 1000.0 + ASK_SECONDS) is not None
    assert choice.wanted(KEY, job, location(Culprit("slow_link", (1, 2))), answering, 2000.0) is None
    assert choice.wanted(KEY, job, location(), answering, 2000.0) is None
    assert StackChoice().wanted(KEY, job, slow, {"http://b"}, 0.0) is None  # the suspect's agent does not answer


def test_of_a_job_that_stands_still_what_its_ranks_took_is_read_until_all_is_there(make: Any) -> None:
    _, job = job_of(make, {"http://a": range(4)}, 4)
    choice = StackChoice()
    hung = location(Culprit("hung", (2,)))
    wanted = choice.wanted(KEY, job, hung, {"http://a"}, 0.0)
    assert wanted is not None and wanted.ranks == (0, 1, 2, 3) and not wanted.samples
    assert choice.wanted(KEY, job, hung, {"http://a"}, LOOK_SECONDS - 1) is None
    job.held_stacks.add({rank: sampled(rank, why=STALLED) for rank in (0, 1, 3)}, {}, 0.0)
    wanted = choice.wanted(KEY, job, hung, {"http://a"}, LOOK_SECONDS)
    assert wanted is not None and wanted.ranks == (2,)
    job.held_stacks.add({2: sampled(2, why=STALLED)}, {}, 0.0)
    assert choice.wanted(KEY, job, hung, {"http://a"}, 2 * LOOK_SECONDS) is None
    assert choice.wanted(KEY, job, hung, {"http://a"}, LOOK_SECONDS + ASK_SECONDS) is not None
    still = location(notes=(Note("deadlock", "all wait"),))
    assert StackChoice().wanted(KEY, job, still, {"http://a"}, 0.0) is not None


def test_ranks_are_asked_with_the_token_and_their_answers_are_held(
    make: Any, fake_agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_rounds, "_LOOK_SECONDS", 0.05)
    asked: list[tuple[str, str]] = []

    def stacks(method: str, query: dict[str, str], authorization: str) -> Any:
        asked.append((method, query["ranks"]))
        if authorization != f"Bearer {TOKEN}":
            return 401
        ranks = tuple(map(int, query["ranks"].split(",")))
        if method == "POST":
            return StacksAsked(1000, "job-1", (IDENT,), ranks, float(query["seconds"]))
        late = len([it for it in asked if it[0] == "GET"]) == 1
        return document(ranks[:1], missing=(MissingStacks(ranks[1], "later"),)) if late else document(ranks)

    agent, off = fake_agent(None), fake_agent(None)
    agent.stacks, off.stacks = stacks, lambda *_: 403
    windows, job = job_of(make, {agent.url: range(2), off.url: range(2, 4)}, 4)

    async def run(token: str) -> StacksAsked:
        rounds = StackRounds(windows, lambda: token, 30.0)
        answer = await rounds.ask(KEY, (), 5, 0.1, {agent.url, off.url})
        await asyncio.gather(*rounds._tasks.values())
        return answer

    answer = asyncio.run(run(TOKEN))
    assert answer.ranks == (0, 1) and answer.idents == (IDENT,)
    assert {it.rank: it.reason for it in answer.missing} == dict.fromkeys(
        (2, 3), "stacks are off at its agent: it needs the same stacks_token_file"
    )
    assert asked == [("POST", "0,1"), ("GET", "0,1"), ("GET", "1")]
    assert sorted(job.stacks) == [0, 1] and job.stacks[1].ask == IDENT
    ingest(windows, "http://gone", make.node("n9", range(2, 4), world_size=4), 1e6)  # took them over, and is gone
    told = {it.rank: it.reason for it in asyncio.run(run(TOKEN)).missing}
    assert told == dict.fromkeys((2, 3), "its agent does not answer")
    answer = asyncio.run(run("wrong"))
    assert answer.ranks == () and "another token" in answer.missing[0].reason


async def test_without_a_token_this_users_jobs_are_asked_on_this_machine(
    make: Any, fake_agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = fake_agent(None)
    agent.stacks = lambda method, query, authorization: document(tuple(map(int, query["ranks"].split(","))))
    windows, job = job_of(make, {agent.url: range(2), "http://n1:9": range(2, 4)}, 4)
    hung, answering = {KEY: location(Culprit("hung", (1,)))}, {agent.url, "http://n1:9"}
    rounds = StackRounds(windows, None, 30.0)
    for user, asked in ((KEY.owner + 1, []), (KEY.owner, [0, 1])):
        monkeypatch.setattr(stack_rounds.os, "geteuid", lambda user=user: user)
        rounds.look(hung, answering, 0.0)
        await asyncio.gather(*rounds._tasks.values())
        assert sorted(job.stacks) == asked


@pytest.mark.slow
async def test_four_thousand_ranks_that_stand_still_are_read_and_held_within_bounds(
    make: Any, fake_agent: Callable[..., Any]
) -> None:
    frames = tuple(Frame(f"function_{number}", f"/home/u/package/module_{number}.py", number) for number in range(40))
    threads = tuple(Thread(f"thread {number}", (Counted(1, frames[number:]),)) for number in range(20))

    def stacks(method: str, query: dict[str, str], _: str) -> Any:
        ranks = map(int, query["ranks"].split(","))
        told = (rank_stacks(sampled(it, job_id="job-1", why=STALLED, threads=threads)) for it in ranks)
        return StacksDocument(1000, "job-1", tuple(told), (), "n0")

    agents = [fake_agent(None) for _ in range(4)]
    for agent in agents:
        agent.stacks = stacks
    split = {agent.url: range(place * 1024, (place + 1) * 1024) for place, agent in enumerate(agents)}
    windows, job = job_of(make, split, 4096)
    rounds = StackRounds(windows, lambda: TOKEN, 300.0)
    rounds.look({KEY: location(Culprit("hung", (7,)))}, set(split), 0.0)
    await asyncio.gather(*rounds._tasks.values())
    assert len(job.stacks) == 4096
    assert all(len(path) < 1024 for agent in agents for path in agent.requests)
    assert sum(len(agent.requests) for agent in agents) == 4096 / 64
    # Equal frames are held once: 4,096 ranks of one script are far from 4,096 times one rank.
    assert job.stacks[0].training.stacks[0].frames[0] is job.stacks[4095].training.stacks[0].frames[0]
    assert job.held_stacks.bytes < 64 << 20
    held = stack_rounds.MAX_BYTES
    answer = encode(stacks_document(KEY, _held(job)))
    assert len(answer) < MAX_ANSWER_BYTES + (4 << 20) and held == 64 << 20


def _held(job: Job) -> Any:
    from laggard.collector.jobs.job import JobStacks

    return JobStacks(job.stacks, job.held_stacks.missing, tuple(sorted(job.ranks)))


def test_the_oldest_give_way_where_all_jobs_hold_too_much(make: Any) -> None:
    jobs = [Job(None, "http://a", 0.0, 0.0, 0.0) for _ in range(3)]  # type: ignore[arg-type]
    for place, job in enumerate(jobs):
        job.held_stacks.add({0: sampled(0, 0.5)}, {}, float(place))
    one = jobs[0].held_stacks.bytes
    drop_beyond(jobs, 2 * one)
    assert [len(job.stacks) for job in jobs] == [0, 1, 1] and jobs[0].held_stacks.bytes == 0


def test_an_older_answer_takes_no_newer_ones_place() -> None:
    held = HeldStacks()
    held.add({0: sampled(0, at=100.0), 1: sampled(1, at=100.0)}, {2: "gone"}, 1.0)
    held.add({0: sampled(0, at=50.0), 1: sampled(1, at=150.0), 2: sampled(2, at=1.0)}, {3: "stopped"}, 2.0)
    assert {rank: each.at for rank, each in held.by_rank.items()} == {0: 100.0, 1: 150.0, 2: 1.0}
    assert held.missing == {3: "stopped"}
