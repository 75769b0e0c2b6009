"""A look at all jobs of a Prometheus: what is told of it, and when."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus import queries, watch
from laggard.collector.prometheus.choice import Known
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.watch import MAX_JOBS, PrometheusWatch, snapshot_of
from laggard.kit.errors import UsageError
from laggard.model import JobKey


class Store:
    """Jobs that each take `seconds` to be judged, by the store's own clock. `told`: the jobs that the watch told of
    when each was judged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.jobs, self.seconds, self.now, self.looks = ["a", "b", "c"], seconds, 0.0, 0
        self.told: list[list[str]] = []
        self.watch = PrometheusWatch(Prometheus("http://127.0.0.1:9"), interval_seconds=60.0)
        monkeypatch.setattr(watch, "known_jobs", self.known)
        monkeypatch.setattr(watch, "judged", self.judged)
        monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: self.now))

    def known(self, prometheus: Prometheus, wanted: object, at: object) -> list[Known]:
        self.looks += 1
        if not self.jobs:
            raise UsageError("away")
        return [Known(queries.Job(name, "1000", ""), -float(place), 0.0) for place, name in enumerate(self.jobs)]

    def judged(self, prometheus: Prometheus, key: JobKey, alike: Sequence[Known]) -> JobSnapshot:
        self.told.append(self.shown())
        self.now += self.seconds
        return snapshot_of(key, unknown_location("test", f"look {self.looks}", key.job_id), 0.0)

    def shown(self) -> list[str]:
        return [f"{job.key.job_id}: {job.location.notes[0].text}" for job in self.watch.jobs]


def test_verdicts_are_told_while_the_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, seconds=2.0)
    store.watch.look()
    assert store.told == [[], ["a: look 1"], ["a: look 1", "b: look 1"]]
    assert store.shown() == ["a: look 1", "b: look 1", "c: look 1"] and not store.watch.notes
    store.jobs = ["d", "c", "a"]
    store.told.clear()
    store.watch.look()
    former = ["a: look 1", "b: look 1", "c: look 1"]
    assert store.told == [former, ["d: look 2", "c: look 1", "a: look 1"], ["d: look 2", "c: look 2", "a: look 1"]]
    assert store.shown() == ["d: look 2", "c: look 2", "a: look 2"], "b has ended"


def test_a_look_that_takes_longer_than_its_interval_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, seconds=21.0)
    store.watch.look()
    assert [note.text for note in store.watch.notes] == [
        "a look at its 3 jobs took 63 s: verdicts may be so much older"
    ]


def test_more_jobs_than_it_judges_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, seconds=0.01)
    store.jobs = [f"job-{number}" for number in range(MAX_JOBS + 2)]
    store.watch.look()
    assert len(store.watch.jobs) == MAX_JOBS and store.watch.jobs[0].key == JobKey(1000, "job-0")
    (note,) = store.watch.notes
    assert note.text.startswith(f"2 jobs in Prometheus are not watched: {MAX_JOBS} at once are")


def test_where_it_does_not_answer_no_job_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, seconds=0.01)
    store.watch.look()
    store.jobs = []
    store.watch.look()
    assert not store.watch.jobs and not store.watch.up and "away" in store.watch.notes[0].text


def test_a_job_that_several_clusters_have_is_unknown_until_one_is_chosen() -> None:
    alike = [Known(queries.Job("train", "1000", cluster), 1.0, 0.0) for cluster in ("a", "b")]
    location = watch.judged(Prometheus("http://127.0.0.1:9"), JobKey(1000, "train"), alike).location
    assert [note.kind for note in location.notes] == ["several_clusters"] and not location.culprits
    assert "one of a, b" in location.notes[0].text
