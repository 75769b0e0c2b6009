"""Which evaluator judges a job, what moves with it, and what all of them answer."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from support.postgres import Server
from support.scraping import prometheus
from support.stores import location
from support.waiting import wait_for

from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.prometheus.watch import snapshot_of
from laggard.collector.shared_verdicts import (
    LEASE_SECONDS,
    MAX_VERDICT_BYTES,
    NOT_JUDGED,
    STALE_ROUNDS,
    Exchange,
    Judged,
    Members,
    Place,
    Standing,
    bounded,
    hashmod,
    not_looked_at,
)
from laggard.model import Culprit, JobKey, Location, Note, Verdict
from laggard.wire import encode

MANY_KEYS = [JobKey(1000 + number % 3, f"train-{number}") for number in range(300)]
NAMES = JobKey(0, 'ü; \\ " {}'), JobKey(4294967294, "x" * 128)


@pytest.mark.slow  # a Prometheus
def test_the_hash_is_that_of_prometheus(tmp_path: Path) -> None:
    if not shutil.which("prometheus"):
        pytest.skip("NO PROMETHEUS: hashmod is NOT compared with its own; apt-get install prometheus")
    keys = [*MANY_KEYS[:20], *NAMES]
    targets = [
        {"targets": [f"127.0.0.1:{number + 1}"], "labels": {"user": str(key.owner), "job_id": key.job_id}}
        for number, key in enumerate(keys)
    ]
    relabel = {"source_labels": ["user", "job_id"], "modulus": 97, "target_label": "shard", "action": "hashmod"}
    job = {"job_name": "laggard", "scrape_interval": "1h", "static_configs": targets, "relabel_configs": [relabel]}
    with prometheus(tmp_path, [job]) as asked:
        wait_for(lambda: len(asked("targets")["activeTargets"]) == len(keys), lambda: asked("targets"))
        found = asked("targets")["activeTargets"]
    shards = {it["labels"]["instance"]: int(it["labels"]["shard"]) for it in found}
    assert shards == {f"127.0.0.1:{number + 1}": hashmod(key, 97) for number, key in enumerate(keys)}


def test_each_job_has_one_judge_and_each_evaluator_its_share() -> None:
    names = ("a", "b", "c")
    judges = Counter(Members(names, "a").judge_of(key) for key in MANY_KEYS)
    assert judges.keys() == set(names) and min(judges.values()) > 60
    for key in MANY_KEYS:
        assert [Members(names, me).is_mine(key) for me in names].count(True) == 1


def test_nobody_judges_where_there_are_no_members_or_one_has_no_name_yet() -> None:
    assert Members().judge_of(MANY_KEYS[0]) == "" and not Members().is_mine(MANY_KEYS[0])
    assert not any(Members(("a", "b")).is_mine(key) for key in MANY_KEYS)


def test_an_evaluator_that_is_gone_loses_its_jobs() -> None:
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a", "c"], "a", LEASE_SECONDS) == Members(("a", "c"), "a")
    assert before.after(["d", "c", "a"], "a", LEASE_SECONDS) == Members(("a", "c", "d"), "a")


def test_after_the_database_was_away_jobs_do_not_move_to_and_fro() -> None:
    """All evaluators come back at once, and the first finds itself alone."""
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a"], "a", 0.1) == before
    assert before.after(["a", "d"], "a", 0.1) == Members(("a", "b", "c", "d"), "a")
    assert Members().after(["a"], "a", 0.1) == Members(("a",), "a"), "one that has just begun knows of no others"


def test_where_none_can_judge_nothing_moves() -> None:
    before = Members(("a", "b"), "a")
    assert before.after([], "a", 100.0) == before


def test_one_that_comes_back_under_another_name_counts_once() -> None:
    """The server still has the connection that holds its name, where the network was cut."""
    before = Members(("a", "b", "c"), "a")
    assert before.after(["a#1", "b", "c"], "a#1", 0.1) == Members(("a#1", "b", "c"), "a#1")


NOW, ROUND, MANY = 1000.0, 60.0, 100
MEMBERS = Members(("a", "b"), "a")
KEYS = [JobKey(1000, f"train-{number}") for number in range(20)]
MINE = next(key for key in KEYS if MEMBERS.is_mine(key))
THEIRS = next(key for key in KEYS if not MEMBERS.is_mine(key))


def standing_location(key: JobKey, *ranks: int) -> Location:
    culprits = (Culprit("slow_compute", (rank,), node="n0") for rank in ranks)
    return location(key.job_id, *culprits, world_size=8, ranks_seen=8, owner=key.owner)


def standing_verdict(key: JobKey, *ranks: int, age: float = 5.0, by: str = "b", progressed: float = 1.0) -> Judged:
    return Judged(snapshot_of(key, standing_location(key, *ranks), progressed), NOW - age, by)


def only(standing: Standing) -> JobSnapshot:
    (job,) = standing.jobs(NOW, ROUND, MANY)
    return job


def why(job: JobSnapshot) -> str:
    assert job.location.verdict is Verdict.UNKNOWN and not job.location.culprits
    (note,) = job.location.notes
    assert note.kind == NOT_JUDGED
    return note.text


def test_what_another_evaluator_judged_is_the_answer_here_too() -> None:
    job = only(Standing(MEMBERS, {THEIRS: 1.0}, rows={THEIRS: standing_verdict(THEIRS, 3)}))
    assert job.location.verdict is Verdict.FAIL and job.location.culprits[0].ranks == (3,)
    assert job.elsewhere and job.told and job.running


def test_of_two_verdicts_the_newer_one_holds() -> None:
    own, row = standing_verdict(MINE, 3, age=20.0, by="a"), standing_verdict(MINE, age=10.0)
    assert only(Standing(MEMBERS, own={MINE: own}, rows={MINE: row})).location.verdict is Verdict.OK
    own = standing_verdict(MINE, 3, age=1.0, by="a")
    job = only(Standing(MEMBERS, own={MINE: own}, rows={MINE: row}))
    assert job.location.verdict is Verdict.FAIL and not job.elsewhere


def test_a_job_that_nobody_has_judged_is_unknown() -> None:
    assert why(only(Standing(MEMBERS, {THEIRS: 1.0}))) == "no evaluator has judged it yet"


def test_a_verdict_that_is_older_than_a_few_rounds_says_nothing_about_now() -> None:
    for key in (MINE, THEIRS):
        fresh = Standing(MEMBERS, rows={key: standing_verdict(key, age=STALE_ROUNDS * ROUND - 1)})
        assert only(fresh).location.verdict is Verdict.OK and not only(fresh).told
        job = only(Standing(MEMBERS, rows={key: standing_verdict(key, age=200.0)}))
        assert why(job) == "it was judged last 200 s ago, by b (ok), which says nothing about now"
        assert job.running and job.location.world_size == 8 and not job.told


def test_without_the_database_an_evaluator_answers_for_its_own_jobs_alone() -> None:
    standing = Standing(
        MEMBERS,
        {MINE: 2.0, THEIRS: 1.0},
        {MINE: standing_verdict(MINE, 3, by="a")},
        {THEIRS: standing_verdict(THEIRS), MINE: standing_verdict(MINE)},
        away="it is gone",
    )
    own, other = sorted(standing.jobs(NOW, ROUND, MANY), key=lambda it: it.elsewhere)
    assert own.key == MINE and own.location.verdict is Verdict.FAIL
    assert other.key == THEIRS and why(other).endswith("what others judged cannot be read: it is gone")


def test_an_own_verdict_of_a_job_that_moved_away_is_none_of_ours() -> None:
    """It is a row by then."""
    assert not Standing(MEMBERS, own={THEIRS: standing_verdict(THEIRS, by="a")}).jobs(NOW, ROUND, MANY)


def test_the_job_that_got_on_last_comes_first_on_every_evaluator() -> None:
    rows = {key: standing_verdict(key, progressed=float(place)) for place, key in enumerate(KEYS)}
    for me in MEMBERS.names:
        found = Standing(Members(MEMBERS.names, me), rows=rows).jobs(NOW, ROUND, 3)
        assert [job.key for job in found] == KEYS[:-4:-1]


def test_jobs_for_which_there_is_no_time_are_unknown() -> None:
    (job,) = not_looked_at([MINE], {MINE: 1.0}, 64)
    assert "judges 64 jobs at once" in why(job) and "run more evaluators" in why(job)


def test_a_verdict_of_any_length_fits_into_its_row() -> None:
    """Labels of a job's series are its user's to choose."""
    long = "x" * 5000
    culprits = tuple(
        Culprit("slow_host", tuple(range(2000)), node=f"n{n}", evidence=(long,) * 30, advice=long) for n in range(200)
    )
    notes = tuple(Note("coarse", long) for _ in range(100))
    found = bounded(structs.replace(standing_location(MINE), verdict=Verdict.FAIL, culprits=culprits, notes=notes))
    assert len(encode(found)) <= MAX_VERDICT_BYTES and found.verdict is Verdict.FAIL
    assert found.culprits[0].node == "n0" and found.notes[-1].kind == "culprits_left_out"
    assert bounded(standing_location(MINE, 3)) == standing_location(MINE, 3)


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
            "SELECT until - extract(epoch FROM now()) FROM laggard.evaluators WHERE name = 'one'"
        ).fetchone()
        assert 0 < seconds <= 10.0
        connection.execute("UPDATE laggard.evaluators SET until = extract(epoch FROM now()) WHERE name = 'one'")
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
                           " judged_at = extract(epoch FROM now())")  # fmt: skip
    assert not other.beat(True, [], ()).rows, "nor one that is larger than any of theirs"
