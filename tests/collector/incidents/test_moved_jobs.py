"""A job that moves from one collector to another takes its incidents along: none is doubled, closed too early, or
counted twice. With a real PostgreSQL."""

import dataclasses
from collections.abc import Callable

import pytest
from msgspec import structs
from support.stores import WALL, Clock, location, stored
from support.waiting import wait_for

from laggard.collector.incidents.history import IncidentHistory
from laggard.collector.incidents.reads import read_of_jobs
from laggard.collector.incidents.tracker import Moved
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.prometheus.watch import snapshot_of
from laggard.model import Culprit, JobKey

KEY = JobKey(1000, "train")
Make = Callable[[str], IncidentHistory]


@pytest.fixture
def make(url: str, start_history: Callable[..., IncidentHistory]) -> Make:
    return lambda writer: start_history(url, writer=writer, takes_over=True)


def job(*ranks: int, kind: str = "slow_compute") -> JobSnapshot:
    culprits = tuple(Culprit(kind, (rank,), node="n1", phase="forward", recoverable_ratio=0.3) for rank in ranks)
    slower = 1.5 if ranks else None
    found = location(KEY.job_id, *culprits, world_size=4, ranks_seen=4, slowdown_ratio=slower)
    return snapshot_of(KEY, found, WALL)


def observe(clock: Clock, history: IncidentHistory, *jobs: JobSnapshot, rounds: int = 3) -> None:
    for _ in range(rounds):
        clock.at += 5.0
        history.observe(jobs)
    assert history.flush(30.0)


def move(url: str, clock: Clock, one: IncidentHistory | None, other: IncidentHistory) -> None:
    """As evaluators do it: the other takes what the database has, then the one lets go, and writes what it knows last;
    the other takes that, too."""
    other.move(taken(url, clock))
    if one is not None:
        one.move(Moved(frozenset((KEY,))))
        assert one.flush(30.0)
        other.move(taken(url, clock))


def taken(url: str, clock: Clock) -> Moved:
    return Moved(incidents=read_of_jobs(url, [KEY], WALL + clock.at - 86400.0))


def counted(*histories: IncidentHistory) -> tuple[int, int]:
    """How many incidents they opened, and how many they closed."""
    return sum(sum(it.opened.values()) for it in histories), sum(it.closed.total() for it in histories)


def test_an_incident_goes_on_where_its_job_moves(url: str, clock: Clock, make: Make) -> None:
    one, other = make("one"), make("other")
    observe(clock, one, job(2))
    (first,) = stored(url)
    assert counted(one, other) == (1, 0)
    move(url, clock, one, other)
    assert not one.open and [it.id for it in other.open] == [first.id]
    observe(clock, other, job(2), rounds=20)
    observe(clock, one, rounds=80)  # it watches nothing, for longer than a job may be silent
    (now,) = stored(url)
    assert now.id == first.id and now.closed_at is None and now.opened_at == first.opened_at
    assert now.seen_at > first.seen_at and now.lost_gpu_hours > first.lost_gpu_hours
    assert counted(one, other) == (1, 0)


@pytest.mark.parametrize("kind", ["slow_compute", "dead"])  # one that died is an incident in its first round
def test_a_job_that_comes_back_has_the_incident_that_it_had(url: str, clock: Clock, make: Make, kind: str) -> None:
    one, other = make("one"), make("other")
    observe(clock, one, job(2, kind=kind))
    for _ in range(2):
        move(url, clock, one, other)
        observe(clock, other, job(2, kind=kind), rounds=100)
        move(url, clock, other, one)
        observe(clock, one, job(2, kind=kind), rounds=100)
    assert len(stored(url)) == 1 and counted(one, other) == (1, 0)


def test_both_watch_for_a_round_and_nothing_is_doubled(url: str, clock: Clock, make: Make) -> None:
    one, other = make("one"), make("other")
    observe(clock, one, job(2))
    move(url, clock, None, other)
    for _ in range(4):
        observe(clock, one, job(2), rounds=1)
        observe(clock, other, job(2), rounds=1)
    one.move(Moved(frozenset((KEY,))))
    observe(clock, other, job(2))
    assert len(stored(url)) == 1 and counted(one, other) == (1, 0)


def test_whoever_watches_it_last_closes_it(url: str, clock: Clock, make: Make) -> None:
    one, other = make("one"), make("other")
    observe(clock, one, job(2))
    move(url, clock, one, other)
    observe(clock, other, job(), rounds=80)
    (closed,) = stored(url)
    assert closed.closed_because == "recovered"
    assert counted(one) == (1, 0) and counted(other) == (0, 1)
    move(url, clock, other, one)
    observe(clock, one, job(2))
    first, again = stored(url)
    assert first.id == closed.id and again.closed_at is None and again.returned is not None, "it came back"
    assert again.returned.times == 1


def test_what_was_closed_here_is_not_opened_by_what_was_read_before(url: str, clock: Clock, make: Make) -> None:
    """A job's incidents are read for half a minute, and what was read may be older than what is known here."""
    one, other = make("one"), make("other")
    observe(clock, one, job(2))
    move(url, clock, one, other)
    before = taken(url, clock)
    observe(clock, other, job(2))
    ended = structs.replace(job(2).location, notes=())
    clock.at += 5.0
    other.observe([dataclasses.replace(job(2), running=False, location=ended)])
    other.move(before)
    assert not other.open and other.flush(30.0)
    observe(clock, other, rounds=2)
    (closed,) = stored(url)
    assert closed.closed_because == "job_ended" and counted(one, other) == (1, 1)


def test_what_a_killed_collector_has_left_goes_on_under_its_id(url: str, clock: Clock, make: Make) -> None:
    one = make("one")
    observe(clock, one, job(2))
    one.close()
    (first,) = stored(url)
    again = make("one")  # of the same name: it goes on with nothing by itself, since its jobs are another's now
    assert not again.open
    other = make("other")
    move(url, clock, None, other)
    observe(clock, other, job(2), rounds=20)
    observe(clock, again, rounds=80)
    (now,) = stored(url)
    assert now.id == first.id and now.closed_at is None and now.gaps == 0


def test_suspects_are_those_that_are_known_best(
    url: str, clock: Clock, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an incident that moved away, a collector knows what the other one wrote since."""
    monkeypatch.setattr("laggard.collector.incidents.writer.NEWS_SECONDS", 0.2)
    one, other = make("one"), make("other")
    observe(clock, one, job(2))
    move(url, clock, one, other)
    observe(clock, other, job(2), rounds=20)
    clock.at += 60.0
    observe(clock, other, job(2))
    wait_for(lambda: one.suspects(WALL)[0].seen_at >= WALL + 60.0)
    assert len(one.suspects(WALL)) == 1
