"""One evaluator beside others, with a real PostgreSQL. Prometheus and the verdicts from it are stand-ins here:
test_fleet.py has them real."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.postgres import running
from support.stores import location

from laggard.collector import evaluators as evaluator_module
from laggard.collector.evaluators import CATCH_UP_SECONDS, RETRY_SECONDS, Evaluator
from laggard.collector.incidents import postgres as postgres_module
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus import queries
from laggard.collector.prometheus.choice import Known
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.watch import MAX_JOBS, snapshot_of
from laggard.collector.shared_verdicts import LEASE_SECONDS, NOT_JUDGED, Members, Place
from laggard.kit.errors import UsageError
from laggard.model import Culprit, JobKey

ROUND = 60.0
Make = Callable[[str], Evaluator]


class Cluster:
    """What Prometheus has: jobs, and who of them has a slow rank 3. `judged`: who judged what."""

    def __init__(self) -> None:
        self.jobs = [f"train-{number}" for number in range(12)]
        self.slow = {"train-1", "train-5"}
        self.away = ""
        self.left_out = ""  # as a distributed store warns
        self.too_new = False  # as where a store has just begun
        self.judged: list[str] = []

    def known(self, prometheus: Prometheus, *_: Any) -> list[Known]:
        if self.away:
            raise UsageError(self.away)
        if self.left_out:
            prometheus.warnings.append(self.left_out)
        return [Known(queries.Job(name, "1000"), float(place), 0.0) for place, name in enumerate(self.jobs)]

    def verdict(self, _: Prometheus, key: JobKey, alike: Sequence[Known]) -> JobSnapshot:
        self.judged.append(key.job_id)
        culprits = (Culprit("slow_compute", (3,), node="n0"),) if key.job_id in self.slow else ()
        if self.too_new:
            return snapshot_of(
                key, unknown_location("too_few_steps", "2 steps seen", key.job_id), alike[0].progressed_at
            )
        return snapshot_of(key, location(key.job_id, *culprits), alike[0].progressed_at)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(evaluator_module, "known_jobs", found.known)
    monkeypatch.setattr(evaluator_module, "judged", found.verdict)
    return found


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[Evaluator] = []

    def start(name: str) -> Evaluator:
        made.append(Evaluator(Prometheus("http://127.0.0.1:9"), Place(url, "fleet", name), ROUND, 4096))
        return made[-1]

    yield start
    for each in made:
        each.leave()


def begin(*evaluators: Evaluator) -> None:
    """As run() does, in the order in which it matters: lists, joins, finds who else is there, judges, exchanges."""
    for step in ("look", "beat", "beat", "look", "beat", "beat"):
        for each in evaluators:
            getattr(each, step)()


def verdicts(of: Evaluator) -> dict[str, str]:
    return {job.key.job_id: job.location.verdict.value for job in of.jobs}


def right(cluster: Cluster) -> dict[str, str]:
    return {name: "fail" if name in cluster.slow else "ok" for name in cluster.jobs}


def own(of: Evaluator) -> set[str]:
    return {job.key.job_id for job in of.turn().jobs}


def test_each_judges_its_share_and_answers_for_all(cluster: Cluster, make: Make) -> None:
    evaluators = [make(name) for name in ("a", "b", "c")]
    begin(*evaluators)
    assert sorted(cluster.judged) == sorted(cluster.jobs), "each job is judged by one of them"
    shares = [own(each) for each in evaluators]
    assert all(shares) and sorted(name for share in shares for name in share) == sorted(cluster.jobs)
    for each, share in zip(evaluators, shares, strict=True):
        assert verdicts(each) == right(cluster) and each.live == 3 and not each.notes
        assert {job.key.job_id for job in each.jobs if not job.elsewhere} == share
    assert len({tuple(job.key for job in each.jobs) for each in evaluators}) == 1, "in one order"


def test_the_jobs_of_one_that_ends_are_the_others(cluster: Cluster, make: Make) -> None:
    one, other = make("a"), make("b")
    begin(one, other)
    moved = own(one)
    one.leave()
    other.beat()
    assert own(other) == set(cluster.jobs) and other.live == 1
    assert verdicts(other) == right(cluster), "what the one judged is a fact about now for some rounds"
    cluster.judged.clear()
    assert other._has_news()
    other.look()
    assert moved <= set(cluster.judged) and not other._has_news()


def test_one_that_joins_takes_its_share_and_lets_others_forget_it(cluster: Cluster, make: Make) -> None:
    one = make("a")
    begin(one)
    assert own(one) == set(cluster.jobs)
    other = make("b")
    begin(other)
    one.beat()
    turn = one.turn()
    assert {key.job_id for key in turn.moved.released} == own(other) and not one.turn().moved.released
    assert {job.key.job_id for job in turn.jobs} | own(other) == set(cluster.jobs)


def test_more_jobs_than_one_has_time_for_are_unknown(cluster: Cluster, make: Make) -> None:
    cluster.jobs = [f"train-{number}" for number in range(MAX_JOBS + 3)]
    one = make("a")
    begin(one)
    found = verdicts(one)
    assert sorted(found.values()).count("unknown") == 3 and len(found) == MAX_JOBS + 3


def test_a_job_that_is_gone_is_gone_for_all(cluster: Cluster, make: Make) -> None:
    one, other = make("a"), make("b")
    begin(one, other)
    cluster.jobs = cluster.jobs[3:]
    for _ in range(2):
        for each in (one, other):
            each.look()
            each.beat()
    assert verdicts(one) == verdicts(other) == right(cluster)


def test_one_whom_prometheus_does_not_answer_gives_its_jobs_away(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make("a"), make("b")
    begin(one, other)
    cluster.away = "no Prometheus answers at http://127.0.0.1:9"
    one.look()
    assert not one.up and "no Prometheus answers" in one.notes[0].text
    one.beat()
    other.beat()
    assert other.live == 2, "once is nothing: it may be a restart"
    monkeypatch.setattr(one, "_failing_since", one._failing_since - LEASE_SECONDS)
    one.beat()
    other.beat()
    assert own(other) == set(cluster.jobs) and not own(one)
    cluster.away = ""
    one.look()
    one.beat()
    other.beat()
    assert own(one) and own(one) | own(other) == set(cluster.jobs)


@pytest.mark.slow
def test_without_the_database_each_answers_for_its_own_and_comes_back(cluster: Cluster) -> None:
    with running() as server:
        url = server.database()
        one, other = (
            Evaluator(Prometheus("http://127.0.0.1:9"), Place(url, "fleet", name), ROUND, 4096) for name in ("a", "b")
        )
        begin(one, other)
        mine = own(one)
        server.kill()
        one.beat()
        assert verdicts(one) == right(cluster), "what was read a moment ago"
        one._read_at -= LEASE_SECONDS
        one.beat()
        found = verdicts(one)
        assert {name for name, verdict in found.items() if verdict == "unknown"} == set(cluster.jobs) - mine
        assert {name: found[name] for name in mine} == {name: right(cluster)[name] for name in mine}
        assert own(one) == mine and one.live == 0
        (note,) = one.notes
        assert note.kind == "evaluators" and "the database: postgresql:///tests" in note.text
        others = [job.location.notes[0] for job in one.jobs if job.elsewhere]
        assert {it.kind for it in others} == {NOT_JUDGED} and all("cannot be used" in it.text for it in others)
        cluster.jobs.append(next(name for name in map(str, range(99)) if _is_of(one, name)))
        one.look()
        one.beat()
        assert cluster.jobs[-1] in own(one), "it follows a job that begins meanwhile"
        server.start()
        one.beat()
        assert verdicts(one) == right(cluster), "what it knew of the other's jobs, who is not back yet"
        for beats in range(2):
            for _ in range(3):
                for each in (one, other):
                    each.beat()
            assert verdicts(one) == verdicts(other) == right(cluster) and own(one) == {*mine, cluster.jobs[-1]}
            assert one.live == 2 and not one.notes
            if beats == 0:  # once more, so fast that nobody sees it away
                server.kill()
                server.start()
        for each in (one, other):
            each.leave()


def _is_of(evaluator: Evaluator, name: str) -> bool:
    return evaluator._standing.members.is_mine(JobKey(1000, name))


def test_one_that_never_reached_the_database_judges_nothing(cluster: Cluster) -> None:
    url = "postgresql:///tests?host=/nonexistent&user=laggard"
    one = Evaluator(Prometheus("http://127.0.0.1:9"), Place(url, "fleet", "a"), ROUND, 4096)
    begin(one)
    assert not cluster.judged and set(verdicts(one).values()) == {"unknown"} and len(one.jobs) == 12
    assert "the database: " in one.notes[0].text and own(one) == set()


def test_where_a_store_says_that_it_left_something_out_no_job_is_gone(cluster: Cluster, make: Make) -> None:
    one, other = make("a"), make("b")
    begin(one, other)
    everything = right(cluster)
    cluster.jobs, cluster.left_out = cluster.jobs[:3], "store 2 does not answer"
    begin(one, other)
    assert verdicts(one).keys() == verdicts(other).keys() == everything.keys()
    assert any("store 2 does not answer" in note.text for note in one.notes)
    cluster.left_out = ""
    begin(one, other)
    assert verdicts(one) == verdicts(other) == right(cluster)


def test_one_whose_question_hangs_gives_its_jobs_away_unless_prometheus_is_only_slow(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the network drops what is sent: no error comes."""
    one, other = make("a"), make("b")
    begin(one, other)
    answers = [True]
    monkeypatch.setattr(one._prometheus, "answers", lambda seconds: answers[0])
    one._waiting_since = time.monotonic() - LEASE_SECONDS - 1.0
    assert "has not answered for 11 s" in one.notes[0].text
    for each in (one, other):
        each.beat()
    assert other.live == 2, "it answers the least of questions: it is slow"
    answers[0] = False
    for each in (one, other):
        each.beat()
    assert other.live == 1 and own(other) == set(cluster.jobs) and not own(one)
    one.look()
    for each in (one, other):
        each.beat()
    assert own(one) | own(other) == set(cluster.jobs) and own(one) and other.live == 2


def test_a_job_that_prometheus_cannot_answer_about_leaves_the_others_their_verdicts(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(prometheus: Prometheus, key: JobKey, alike: Sequence[Known]) -> JobSnapshot:
        if key.job_id == "train-0":
            raise UsageError("Prometheus cannot answer (422)")
        return cluster.verdict(prometheus, key, alike)

    monkeypatch.setattr(evaluator_module, "judged", verdict)
    one = make("a")
    monkeypatch.setattr(one._prometheus, "answers", lambda seconds: True)
    begin(one)
    assert verdicts(one) == {**right(cluster), "train-0": "unknown"} and one.up
    (job,) = [it for it in one.jobs if it.key.job_id == "train-0"]
    assert job.running and not job.told and "(422)" in job.location.notes[0].text


def test_after_prometheus_was_away_jobs_without_a_verdict_are_looked_at_soon(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make("a")
    begin(one)
    soon = one._pause_seconds
    assert soon(time.monotonic(), 0.1) == ROUND
    cluster.away = "no Prometheus answers at http://127.0.0.1:9"
    one.look()
    assert soon(time.monotonic(), 0.1) == RETRY_SECONDS
    cluster.away, cluster.too_new = "", True
    one.look()
    now = time.monotonic()
    assert soon(now, 0.1) == RETRY_SECONDS and soon(now, 5.0) == 10.0, "looks take half of the time at most"
    assert soon(now + CATCH_UP_SECONDS, 0.1) == ROUND
    cluster.too_new = False
    one.look()
    assert soon(time.monotonic(), 0.1) == ROUND
    one._catches_up_until = 0.0
    cluster.too_new = True
    one.look()
    assert soon(time.monotonic(), 0.1) == RETRY_SECONDS, "it was away between two looks"


def test_two_that_both_judge_a_job_give_one_answer(cluster: Cluster, make: Make) -> None:
    """As for a round after one was cut off: it does not know yet that its jobs are another's."""
    one, other = make("a"), make("b")
    begin(one, other)
    one._standing = dataclasses.replace(one._standing, members=Members(("a",), "a"))
    cluster.judged.clear()
    for step in ("look", "beat", "beat"):
        for each in (one, other):
            getattr(each, step)()
    twice = {name for name, count in Counter(cluster.judged).items() if count == 2}
    assert twice and verdicts(one) == verdicts(other) == right(cluster)
    assert own(one) | own(other) == set(cluster.jobs) and not own(one) & own(other)


def test_their_number_changes_while_jobs_run(cluster: Cluster, make: Make) -> None:
    """Three, then five, then two: whoever asks whomever gets the right answer all the time."""
    running = [make(name) for name in ("a", "b", "c")]
    begin(*running)
    for add, remove in ((("d", "e"), 0), ((), 3)):
        new = [make(name) for name in add]
        for each in new:  # as one that starts: it is not ready before it knows what the others judged
            each.look()
            each.beat()
        for each in running[:remove]:
            each.leave()
        running = [*running[remove:], *new]
        for step in ("beat", "look", "beat", "look", "beat"):
            for each in running:
                getattr(each, step)()
                assert [verdicts(it) for it in running] == [right(cluster)] * len(running)
        shares = [own(each) for each in running]
        assert sorted(name for share in shares for name in share) == sorted(cluster.jobs)
        assert {each.live for each in running} == {len(running)}


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_an_hour_off_change_nothing_between_evaluators(
    cluster: Cluster, make: Make, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The database's clock alone counts. (Of one whose clock is not Prometheus' the verdicts are `unknown`:
    `store_clock`.)"""
    one, other = make("a"), make("b")
    real = time.time
    for step in ("look", "beat", "beat", "look", "beat", "beat"):
        for each, off in ((one, 3600.0 * hours), (other, 0.0)):
            monkeypatch.setattr(time, "time", lambda off=off: real() + off)
            getattr(each, step)()
    assert verdicts(one) == verdicts(other) == right(cluster)
    assert {one.live, other.live} == {2} and own(one) | own(other) == set(cluster.jobs)


async def test_a_verdict_that_changes_is_told_of_at_once(cluster: Cluster, make: Make) -> None:
    """Whoever judged: the collector's next round of answers is not waited for."""
    one = make("a")
    news: list[str] = []
    one.on_news = lambda: news.append(str(verdicts(one).get("train-0")))

    async def until(count: int) -> None:
        while len(news) < count:
            await asyncio.sleep(0.01)

    task = asyncio.create_task(one.run())
    try:
        await asyncio.wait_for(until(1), 60.0)
        while "ok" not in news:
            await asyncio.sleep(0.01)
        heard = len(news)
        cluster.slow.add("train-0")
        await asyncio.to_thread(one.look)
        await asyncio.wait_for(until(heard + 1), 60.0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert news[-1] == "fail" and news.count("fail") == 1


@pytest.mark.slow
def test_a_database_that_hangs_is_given_up_and_found_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it takes what is sent and answers nothing: to its clients as a network that drops packets."""
    monkeypatch.setattr(postgres_module, "ANSWER_SECONDS", 1.0)
    with running() as server:
        url = server.database()
        one, other = (
            Evaluator(Prometheus("http://127.0.0.1:9"), Place(f"{url}&connect_timeout=2", "fleet", name), ROUND, 4096)
            for name in ("a", "b")
        )
        begin(one, other)
        with server.stopped():
            began = time.monotonic()
            one.beat()
            assert time.monotonic() - began < 60.0 and one._away
            one._read_at -= LEASE_SECONDS
            assert "cannot be used" in one.notes[0].text
        for _ in range(2):
            for each in (one, other):
                each.beat()
        assert verdicts(one) == verdicts(other) == right(cluster) and not one.notes
        for each in (one, other):
            each.leave()
