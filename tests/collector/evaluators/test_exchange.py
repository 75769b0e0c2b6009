"""The rows that evaluators share, in a real PostgreSQL: who is alive, and the newest verdict on each job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.postgres import Server
from support.stores import location

from laggard.collector.prometheus.watch import snapshot_of
from laggard.collector.shared_verdicts import Exchange, Judged, Place
from laggard.model import Culprit, JobKey, Verdict

KEY = JobKey(1000, "train")
Make = Callable[..., Exchange]


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[Exchange] = []

    def start(name: str, fleet: str = "fleet") -> Exchange:
        made.append(Exchange(Place(url, fleet, name), 100))
        return made[-1]

    yield start
    for each in made:
        each.close()


def judged(*ranks: int, key: JobKey = KEY, age: float = 1.0) -> Judged:
    culprits = tuple(Culprit("slow_compute", (rank,), node="n0") for rank in ranks)
    return Judged(snapshot_of(key, location(key.job_id, *culprits), 7.5), time.monotonic() - age, "")


def test_what_one_judged_the_other_reads_with_its_age(make: Make) -> None:
    one, other = make("one"), make("other")
    names = JobKey(4294967294, "\0 \\ ü %s ?")
    one.beat(True, [judged(3, age=20.0), judged(key=names)], ())
    rows = other.beat(True, [], ()).rows
    assert rows.keys() == {KEY, names}
    found = rows[KEY]
    assert found.by == "one" and 19.0 < time.monotonic() - found.at < 80.0
    assert found.job.location.culprits[0].ranks == (3,) and found.job.progressed_at == 7.5 and found.job.running
    one.beat(True, [judged(4)], ())
    assert other.beat(True, [], ()).rows[KEY].job.location.culprits[0].ranks == (4,)


def test_an_older_verdict_takes_no_newer_ones_place(make: Make) -> None:
    """Two judge a job while it moves from one to the other."""
    one, other = make("one"), make("other")
    one.beat(True, [judged(3, age=1.0)], ())
    other.beat(True, [judged(age=30.0)], ())
    rows = [each.beat(True, [], ()).rows[KEY] for each in (one, other)]
    assert {it.by for it in rows} == {"one"} and {it.job.location.verdict for it in rows} == {Verdict.FAIL}


def test_who_says_so_is_alive_until_the_lease_ends_by_the_databases_clock(make: Make, postgres: Server) -> None:
    one, other = make("one"), make("other")
    assert one.beat(True, [], ()).live == ("one",)
    assert other.beat(True, [], ()).live == ("one", "other")
    with postgres.connect("tests") as connection:
        (seconds,) = connection.execute(
            "SELECT extract(epoch FROM until - now()) FROM laggard.evaluators WHERE name = 'one'"
        ).fetchone()
        assert 0 < seconds <= 10.0
        connection.execute("UPDATE laggard.evaluators SET until = now() WHERE name = 'one'")
    assert other.beat(True, [], ()).live == ("other",), "as eleven seconds after one was killed"
    assert one.beat(True, [], ()).live == ("one", "other")
    assert one.beat(False, [], ()).live == ("other",), "one that cannot judge gives its jobs away"
    other.leave()
    assert one.beat(True, [], ()).live == ("one",), "and so does one that ends"


def test_two_of_one_name_are_two(make: Make) -> None:
    one, other = make("same"), make("same")
    assert one.beat(True, [], ()).me == "same"
    found = other.beat(True, [], ())
    assert found.me == "same#1" and found.live == ("same", "same#1")


def test_groups_in_one_database_know_nothing_of_each_other(make: Make) -> None:
    one, other = make("one", fleet="east"), make("other", fleet="west")
    one.beat(True, [judged(3)], ())
    found = other.beat(True, [], ())
    assert found.live == ("other",) and not found.rows


def test_jobs_that_are_gone_have_no_row(make: Make) -> None:
    one, other = make("one"), make("other")
    one.beat(True, [judged(3)], ())
    assert other.beat(True, [], ()).rows
    one.beat(True, [], [KEY])
    assert not other.beat(True, [], ()).rows


def test_a_row_that_cannot_be_read_costs_that_row(make: Make, postgres: Server) -> None:
    one, other = make("one"), make("other")
    one.beat(True, [judged(3), judged(key=JobKey(1, "b"))], ())
    with postgres.connect("tests") as connection:
        connection.execute("UPDATE laggard.verdicts SET document = '{}' WHERE owner = 1")
    assert other.beat(True, [], ()).rows.keys() == {KEY}
    with postgres.connect("tests") as connection:
        connection.execute("UPDATE laggard.verdicts SET document = document || convert_to(repeat(' ', 200000), 'UTF8'),"
                           " judged_at = now()")  # fmt: skip
    assert not other.beat(True, [], ()).rows, "nor one that is larger than any of theirs"
