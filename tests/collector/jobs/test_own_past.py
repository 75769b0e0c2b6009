"""A live job beside its own first hour: a note and a ratio, and nobody is accused."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from support.timings import job

from laggard.collector.jobs.own_past import DIGEST_SECONDS, FIRST_SECONDS, OwnPasts
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.model import JobKey, Verdict


def snapshot(started: float = 1.0, name: str = "train", **options: Any) -> JobSnapshot:
    options.setdefault("seed", 1)
    location = structs.replace(unknown_location("", "", name), verdict=Verdict.OK, notes=())
    timings = job(ranks=8, steps=40, **options)
    return JobSnapshot(JobKey(1000, name), True, timings, location, started_at=started)


def look(pasts: OwnPasts, now: float, *jobs: JobSnapshot) -> Any:
    due = [(each, {"healthy": True}) for each in pasts.due(jobs, now)]
    made = pasts.make(due, now, 1e9 + now)
    return made, pasts.noted(jobs)


def after_the_first_hour(pasts: OwnPasts) -> float:
    now = 0.0
    while now < FIRST_SECONDS:
        look(pasts, now, snapshot(seed=int(now)))
        now += DIGEST_SECONDS
    return now


def test_a_job_that_became_slower_in_all_ranks_gets_a_note_and_stays_ok() -> None:
    pasts = OwnPasts()
    now = after_the_first_hour(pasts)
    slow = snapshot(slow=[(range(8), 0.1)], seed=99)
    for minute in range(3):
        _, (found,) = look(pasts, now + minute * DIGEST_SECONDS, slow)
        notes = [note.text for note in found.location.notes]
        assert bool(notes) == (minute > 0), "one digest alone may be noise"
    assert notes[0].startswith("forward takes 3") and notes[0].endswith(
        "% longer than in this job's first hour, in all ranks"
    )
    assert found.location.verdict is Verdict.OK and not found.location.culprits
    assert found.first_hour_ratio is not None and 1.05 < found.first_hour_ratio < 1.15


def test_a_steady_job_and_one_slow_rank_get_none() -> None:
    pasts = OwnPasts()
    now = after_the_first_hour(pasts)
    for minute in range(8):
        jobs = snapshot(seed=200 + minute), snapshot(seed=300 + minute, slow=[([3], 0.3)])
        _, (found,) = look(pasts, now + minute * DIGEST_SECONDS, jobs[minute // 4])
        assert not found.location.notes


def test_the_first_hour_is_told_once_made_and_another_run_begins_anew() -> None:
    pasts = OwnPasts()
    made, _ = look(pasts, 0.0, snapshot())
    assert [each.is_first for each in made] == [True] and pasts.first(JobKey(1000, "train")) is made[0].digest
    assert look(pasts, DIGEST_SECONDS / 2, snapshot())[0] == [], "one a minute is enough"
    made, _ = look(pasts, FIRST_SECONDS * 2, snapshot(started=7.0, slow=[(range(8), 0.3)]))
    assert [each.is_first for each in made] == [True]
    assert look(pasts, FIRST_SECONDS * 3)[0] == [] and pasts.first(JobKey(1000, "train")) is None


def test_a_round_makes_a_few_digests_and_comes_to_every_job() -> None:
    pasts = OwnPasts()
    jobs = [snapshot(name=f"job-{number}") for number in range(10)]
    seen = [made.key for now in (0.0, 5.0, 10.0) for made in look(pasts, now, *jobs)[0]]
    assert len(seen) == 10 and set(seen) == {each.key for each in jobs}
