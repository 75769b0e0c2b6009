"""Whatever happens in which order, rounds, ends of jobs, restarts, a clock that is set, answers of the database that
are lost: each incident is stored once, told once and closed once. In a file and in PostgreSQL."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.postgres import Server
from support.stores import WALL, Clock, location, stored

from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.incident import Moment
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.locate.job_timings import build_timings
from laggard.model import Culprit, JobKey

KEY = JobKey(1000, "train")

STEPS = st.lists(
    st.sampled_from(["round", "round", "die", "run", "restart", "clock ahead", "clock back", "lost answer"]),
    max_size=14,
)


class SteppedClock(Clock):
    """`stepped`: by how many seconds it was set."""

    stepped = 0.0

    def __call__(self) -> Moment:
        return Moment(WALL + self.at + self.stepped, 50.0 + self.at)


class Life:
    """A job whose runs die one after the other, each within one round, and the collectors that watch it."""

    def __init__(self, place: str) -> None:
        self.clock, self.place = SteppedClock(), place
        self.run, self.is_dead = 1, False
        self.deaths = 0
        self.opened: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.told: set[int] = set()
        self.history = self._start()

    def _start(self) -> IncidentHistory:
        history = IncidentHistory(HistorySettings(self.place, 1 << 20, 1e9, 300.0, writer="one"), self.clock)
        history.start()
        return history

    def end(self) -> None:
        assert self.history.flush(60.0)
        self.opened += Counter(self.history.opened)
        self.closed += self.history.closed
        self.history.close()

    def do(self, step: str) -> None:
        if step == "die" and not self.is_dead:
            self.is_dead = True
            self.deaths += 1
        elif step == "run" and self.is_dead:
            self.is_dead = False
            self.run += 1
        elif step == "restart":
            self.end()
            self.history = self._start()
        elif step.startswith("clock"):
            self.clock.stepped += 7200.0 if step == "clock ahead" else -7200.0
        elif step == "lost answer":
            self._lose_an_answer()
        self.observe()

    def observe(self) -> None:
        self.clock.at += 5.0
        self.history.observe([self.job()])
        self.told |= {it.id for it in (*self.history.open, *self.history.closed_lately)}
        assert self.history.flush(60.0)

    def job(self) -> JobSnapshot:
        """As an agent tells of it: it makes its wall times anew in each reading, so that they differ a little."""
        dead = (Culprit("dead", (1,), node="n1", advice="look"),) if self.is_dead else ()
        progressed_at = WALL + self.run + (self.clock.at % 7) * 1e-6 + self.clock.stepped
        return JobSnapshot(
            KEY, not self.is_dead, build_timings(KEY.job_id, 4, {}, {}, {}), location(KEY.job_id, *dead),
            progressed_at, started_at=WALL + 100.0 * self.run,
        )  # fmt: skip

    def _lose_an_answer(self) -> None:
        """The next batch is stored, and the collector is not told so: it is tried again."""
        store = self.history.writer.store
        assert store is not None
        write = store.write

        def lose(*words: Any) -> int:
            write(*words)
            raise DatabaseError("the answer was lost")

        store.write = lose  # type: ignore[method-assign]


@pytest.fixture
def begin(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], Life]]:
    numbers, begun = itertools.count(), list[Life]()

    def start() -> Life:
        if place.startswith("postgresql"):
            server: Server = request.getfixturevalue("postgres")
            begun.append(Life(server.database()))
        else:
            begun.append(Life(str(tmp_path / f"{next(numbers)}.sqlite")))
        return begun[-1]

    yield start


@given(steps=STEPS)
@example(steps=["die", "run", "restart", "die"])  # two deaths within half a minute, the second seen by a new collector
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_death_is_stored_told_and_closed_once(begin: Callable[[], Life], steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("laggard.collector.incidents.writer.RETRY_SECONDS", 0.0)
        life = begin()
        for step in steps:
            life.do(step)
        life.observe()
        life.end()
        found = stored(life.place)
        assert len(found) == life.deaths, (steps, found)
        assert len({it.run for it in found}) == life.deaths and all(it.closed_at is not None for it in found)
        assert life.opened["dead"] == life.closed["dead"] == life.deaths
        assert life.told == {it.id for it in found}
