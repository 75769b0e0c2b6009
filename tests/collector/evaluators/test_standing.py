"""The one answer of all evaluators: the newest verdict while it is a fact about now, and never `ok` by default."""

from __future__ import annotations

from msgspec import structs
from support.stores import location as verdict_on

from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.prometheus.watch import snapshot_of
from laggard.collector.shared_verdicts import (
    MAX_VERDICT_BYTES,
    NOT_JUDGED,
    STALE_ROUNDS,
    Judged,
    Members,
    Standing,
    bounded,
    not_looked_at,
)
from laggard.model import Culprit, JobKey, Location, Note, Verdict
from laggard.wire import encode

NOW, ROUND, MANY = 1000.0, 60.0, 100
MEMBERS = Members(("a", "b"), "a")
KEYS = [JobKey(1000, f"train-{number}") for number in range(20)]
MINE = next(key for key in KEYS if MEMBERS.is_mine(key))
THEIRS = next(key for key in KEYS if not MEMBERS.is_mine(key))


def location(key: JobKey, *ranks: int) -> Location:
    culprits = (Culprit("slow_compute", (rank,), node="n0") for rank in ranks)
    return verdict_on(key.job_id, *culprits, world_size=8, ranks_seen=8, owner=key.owner)


def judged(key: JobKey, *ranks: int, age: float = 5.0, by: str = "b", progressed: float = 1.0) -> Judged:
    return Judged(snapshot_of(key, location(key, *ranks), progressed), NOW - age, by)


def only(standing: Standing) -> JobSnapshot:
    (job,) = standing.jobs(NOW, ROUND, MANY)
    return job


def why(job: JobSnapshot) -> str:
    assert job.location.verdict is Verdict.UNKNOWN and not job.location.culprits
    (note,) = job.location.notes
    assert note.kind == NOT_JUDGED
    return note.text


def test_what_another_evaluator_judged_is_the_answer_here_too() -> None:
    job = only(Standing(MEMBERS, {THEIRS: 1.0}, rows={THEIRS: judged(THEIRS, 3)}))
    assert job.location.verdict is Verdict.FAIL and job.location.culprits[0].ranks == (3,)
    assert job.elsewhere and job.told and job.running


def test_of_two_verdicts_the_newer_one_holds() -> None:
    own, row = judged(MINE, 3, age=20.0, by="a"), judged(MINE, age=10.0)
    assert only(Standing(MEMBERS, own={MINE: own}, rows={MINE: row})).location.verdict is Verdict.OK
    own = judged(MINE, 3, age=1.0, by="a")
    job = only(Standing(MEMBERS, own={MINE: own}, rows={MINE: row}))
    assert job.location.verdict is Verdict.FAIL and not job.elsewhere


def test_a_job_that_nobody_has_judged_is_unknown() -> None:
    assert why(only(Standing(MEMBERS, {THEIRS: 1.0}))) == "no evaluator has judged it yet"


def test_a_verdict_that_is_older_than_a_few_rounds_says_nothing_about_now() -> None:
    for key in (MINE, THEIRS):
        fresh = Standing(MEMBERS, rows={key: judged(key, age=STALE_ROUNDS * ROUND - 1)})
        assert only(fresh).location.verdict is Verdict.OK and not only(fresh).told
        job = only(Standing(MEMBERS, rows={key: judged(key, age=200.0)}))
        assert why(job) == "it was judged last 200 s ago, by b (ok), which says nothing about now"
        assert job.running and job.location.world_size == 8 and not job.told


def test_without_the_database_an_evaluator_answers_for_its_own_jobs_alone() -> None:
    standing = Standing(
        MEMBERS,
        {MINE: 2.0, THEIRS: 1.0},
        {MINE: judged(MINE, 3, by="a")},
        {THEIRS: judged(THEIRS), MINE: judged(MINE)},
        away="it is gone",
    )
    own, other = sorted(standing.jobs(NOW, ROUND, MANY), key=lambda it: it.elsewhere)
    assert own.key == MINE and own.location.verdict is Verdict.FAIL
    assert other.key == THEIRS and why(other).endswith("what others judged cannot be read: it is gone")


def test_an_own_verdict_of_a_job_that_moved_away_is_none_of_ours() -> None:
    """It is a row by then."""
    assert not Standing(MEMBERS, own={THEIRS: judged(THEIRS, by="a")}).jobs(NOW, ROUND, MANY)


def test_the_job_that_got_on_last_comes_first_on_every_evaluator() -> None:
    rows = {key: judged(key, progressed=float(place)) for place, key in enumerate(KEYS)}
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
    found = bounded(structs.replace(location(MINE), verdict=Verdict.FAIL, culprits=culprits, notes=notes))
    assert len(encode(found)) <= MAX_VERDICT_BYTES and found.verdict is Verdict.FAIL
    assert found.culprits[0].node == "n0" and found.notes[-1].kind == "culprits_left_out"
    assert bounded(location(MINE, 3)) == location(MINE, 3)
