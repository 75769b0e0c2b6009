"""What the metrics say of recommendations: of jobs that run, within a time, each user's in turn."""

import dataclasses
from typing import Any

import pytest

from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.web import metrics as recommended
from laggard.collector.web.metrics import AGAIN_SECONDS, MAX_JOBS, Recommended
from laggard.locate.job_timings import build_timings
from laggard.model import Culprit, JobKey, Location, Verdict, Window

SLOW = Culprit("slow_compute", (2,), "n1", recoverable_ratio=0.25, advice="Replace it.")


def a_job(name: str, owner: int = 1000, running: bool = True) -> JobSnapshot:
    location = Location(Verdict.FAIL, name, 4, 4, Window(), 1.33, (SLOW,), ())
    return JobSnapshot(JobKey(owner, name), running, build_timings(name, 4, {}, {}, {}), location)


def a_snapshot(*jobs: JobSnapshot) -> ClusterSnapshot:
    return ClusterSnapshot(nodes=(), jobs=jobs)


@dataclasses.dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_only_what_runs_is_told() -> None:
    looks = Recommended(Clock())
    told = looks.look(a_snapshot(a_job("runs"), a_job("ended", running=False)))
    (item,) = told[JobKey(1000, "runs")]
    assert len(told) == 1 and (item.target, item.gain.basis) == ("host", "measured")
    assert item.gain.ratio == pytest.approx(1 / 0.75)
    assert looks.look(a_snapshot(a_job("runs", running=False))) == {}


def test_each_is_looked_at_once_a_minute_and_an_answer_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that take 0.15 s each: two an answer, those of the longest ago first."""
    clock, seen = Clock(), list[str]()

    def slowly(snapshot: ClusterSnapshot, key: JobKey) -> tuple[Any, ...]:
        seen.append(key.job_id)
        clock.now += 0.15
        return ()

    monkeypatch.setattr(recommended, "_items", slowly)
    looks, snapshot = Recommended(clock), a_snapshot(*map(a_job, "abc"))
    for expected in ("ab", "abc", "abc"):
        looks.look(snapshot)
        assert "".join(seen) == expected
    clock.now += AGAIN_SECONDS
    looks.look(snapshot)
    assert "".join(seen) == "abcab"


def test_a_user_with_thousands_of_jobs_leaves_room_for_another() -> None:
    many = [a_job(f"{number}", owner=1) for number in range(MAX_JOBS + 9)]
    chosen = recommended._chosen(a_snapshot(*many, a_job("only", owner=2)))
    assert len(chosen) == MAX_JOBS and JobKey(2, "only") in chosen


def test_a_recommendation_that_fails_costs_no_other_metric(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(recommended, "recommend_watched", broken)
    assert Recommended().look(a_snapshot(a_job("a"))) == {}
    assert "no recommendation for job 1000:a" in caplog.text
