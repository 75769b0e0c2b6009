"""Calm jobs are judged in every second round, all others in each."""

from typing import Any

import pytest
from support.collectors import ingest

from laggard.collector.jobs.held_verdicts import CALM_RATIO, CalmJobs
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot, build_snapshot
from laggard.collector.jobs.window import JobWindows
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import JobKey, Location, Verdict
from laggard.wire.nodes import NodeRow
from laggard.wire.ranks import BeatRow, InFlight, RankCollectives

STEPS_A_ROUND = 10
STEP_SECONDS = 0.25
RANKS = 4


class Rounds:
    """A collector's rounds over a job of four ranks on two nodes. `judged`: whether each round drew a verdict."""

    def __init__(self, make: Any, name: str = "job-1") -> None:
        self._make, self._name = make, name
        self._windows, self._calm, self._step = JobWindows(), CalmJobs(), 0
        self.judged: list[bool] = []
        self.down: set[str] = set()

    def run(
        self,
        slow: float = 0.0,
        asked: bool = False,
        steps: int = STEPS_A_ROUND,
        about: dict[int, dict[str, Any]] | None = None,
    ) -> JobSnapshot:
        """A round with so many more steps, in which rank 2 takes `slow` more seconds; `about`: more of ranks' rows."""
        first, self._step = self._step, self._step + steps
        rows = [
            self._make.rank_row(
                rank,
                RANKS,
                [self._make.step_row(step, slow if rank == 2 else 0.0) for step in range(first, self._step)],
                job_id=self._name,
                **(about or {}).get(rank, {}),
            )
            for rank in range(RANKS)
        ]
        now = float(self._step)
        for node in (0, 1):
            answer = self._make.ranks_document(f"n{node}", rows[2 * node : 2 * node + 2])
            ingest(self._windows, f"http://n{node}", answer, now)
        self._calm.begin_round(judges_all=asked)
        seen: list[JobTimings] = []

        def judge(timings: JobTimings) -> Location:
            seen.append(timings)
            return locate(timings)

        nodes = tuple(
            NodeRow(url, url[-2:], "down" if url in self.down else "up", "", 0.0, "ok", (), ())
            for url in ("http://n0", "http://n1")
        )
        (job,) = build_snapshot(self._windows, ClusterSnapshot(nodes=nodes), judge, calm=self._calm).jobs
        self.judged.append(bool(seen))
        return job

    def answer_collectives(self) -> None:
        """Agents told single collectives of the job."""
        (job,) = self._windows.jobs.values()
        job.collectives, job.collectives_at = {0: RankCollectives(0, (), ())}, float(self._step)

    def settle(self) -> None:
        """Runs until the next round would pass over the job, if it stays calm."""
        for _ in range(6):
            assert self.run().location.verdict is Verdict.OK
        while not self.judged[-1]:
            self.run()
        if self.judged[-2]:
            pytest.fail("a calm job is judged in each round")


@pytest.fixture
def rounds(make: Any) -> Rounds:
    return Rounds(make)


def test_a_calm_job_is_judged_while_its_single_collectives_count(rounds: Rounds) -> None:
    """Steps tell nothing of the link that they may show."""
    rounds.settle()
    rounds.judged.clear()
    rounds.answer_collectives()
    for _ in range(4):
        rounds.run()
    assert all(rounds.judged[:3])
    for _ in range(4):
        rounds.run()
    assert not all(rounds.judged), "they are too old"


def test_a_calm_job_is_judged_in_every_second_round(rounds: Rounds) -> None:
    rounds.settle()
    rounds.judged.clear()
    verdicts = [rounds.run().location.verdict for _ in range(8)]
    assert rounds.judged == [False, True] * 4 and set(verdicts) == {Verdict.OK}


def test_half_of_the_jobs_are_judged_in_each_round(make: Any) -> None:
    """All jobs in one round and none in the next would take as long as all in each."""
    several = [Rounds(make, f"job-{number}") for number in range(40)]
    for each in several:
        for _ in range(6):
            each.run()
    judged = sum(each.judged[-1] for each in several)
    assert 8 <= judged <= 32 and all(sum(each.judged[-2:]) == 1 for each in several)


def test_who_asks_gets_a_verdict_on_what_is_now(rounds: Rounds) -> None:
    rounds.settle()
    lasts = [rounds.run(asked=True).location.window.last_step or 0 for _ in range(3)]
    assert rounds.judged[-3:] == [True] * 3 and lasts[2] - lasts[1] == lasts[1] - lasts[0] == STEPS_A_ROUND


@pytest.mark.parametrize("slow", [0.001, 0.007, 0.01, 0.02, 0.05])
def test_a_fault_is_named_a_round_later_at_most_than_where_each_round_judges(make: Any, slow: float) -> None:
    every, calm = Rounds(make), Rounds(make)
    for each in (every, calm):
        each.settle()
    named = [
        [each.run(slow, asked).location.verdict is Verdict.FAIL for _ in range(20)]
        for each, asked in ((every, True), (calm, False))
    ]
    assert named[0].count(True) - named[1].count(True) in (0, 1)
    assert any(named[0]) == (slow > 0.006), "what costs less than 1 % is not named"


def test_a_rank_that_becomes_slow_is_judged_at_once(rounds: Rounds) -> None:
    rounds.settle()
    rounds.run(slow=0.05)
    assert rounds.judged[-1]


def test_what_is_too_small_to_see_is_named_a_round_later_at_most(rounds: Rounds) -> None:
    """Half of what makes a rank slow is overlooked in one round, and what it adds up to in none."""
    rounds.settle()
    rounds.run(slow=0.9 * CALM_RATIO * STEP_SECONDS)
    assert not rounds.judged[-1]
    rounds.run(slow=0.9 * CALM_RATIO * STEP_SECONDS)
    assert rounds.judged[-1]


@pytest.mark.parametrize(
    "about",
    [
        {2: {"state": "died"}},
        {2: {"stopped": True}},
        {0: {"in_flight": InFlight("all_reduce", "dp:0", 9, 2.0)}},
        {2: {"beat": BeatRow(20.0, 1.0, "on", (), ())}},
    ],
    ids=("died", "stopped", "waits", "silent"),
)
def test_a_rank_in_another_state_is_judged_at_once(rounds: Rounds, about: dict[int, dict[str, Any]]) -> None:
    rounds.settle()
    rounds.run(about=about)
    assert rounds.judged[-1]


def test_a_silent_agent_and_another_run_are_judged_at_once(rounds: Rounds) -> None:
    rounds.settle()
    rounds.down.add("http://n1")
    assert any(note.kind == "agents_silent" for note in rounds.run().location.notes)
    rounds.down.clear()
    rounds.settle()
    rounds.run(about={rank: {"attempt": 1} for rank in range(RANKS)})
    assert rounds.judged[-1]


def test_a_job_with_a_culprit_is_judged_in_each_round(rounds: Rounds) -> None:
    while rounds.run(slow=0.05).location.verdict is not Verdict.FAIL:
        assert len(rounds.judged) < 20
    for _ in range(8):
        rounds.run(slow=0.05)
    assert all(rounds.judged[-8:])


def test_a_job_without_new_steps_stays_as_it_was(rounds: Rounds) -> None:
    rounds.settle()
    before = rounds.run(steps=0)
    assert before.location.verdict is Verdict.OK and not rounds.judged[-1]


def test_what_is_passed_over_says_when_it_got_on(rounds: Rounds) -> None:
    rounds.settle()
    job = rounds.run(about={rank: {"last_progress_timestamp_seconds": 5000.0} for rank in range(RANKS)})
    assert not rounds.judged[-1] and job.progressed_at == 5000.0 and job.key == JobKey(1000, "job-1")
