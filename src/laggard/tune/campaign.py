"""A campaign: the search, its trials and their study, within a budget, about a subject: a space, and how a
configuration in it is measured. It resumes where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from laggard.recommend.advice.situation import Situation
from laggard.tune.plan import Configuration, Found, Outcome, Plan, Proposal, Settings, Space, Status, Value
from laggard.tune.search import Search
from laggard.tune.study import Study

Measure = Callable[[Configuration, Path], Outcome]
"""Measures a configuration once. The folder is the trial's own, and empty."""


class Budget(NamedTuple):
    trials: int = 120
    wall_seconds: float | None = None
    gpu_hours: float | None = None
    gpus: int = 1

    @property
    def seconds(self) -> float | None:
        """The time of trials that this allows; None: any."""
        limits = [self.wall_seconds, self.gpu_hours and self.gpu_hours * 3600 / self.gpus]
        return min((each for each in limits if each), default=None)


class Progress(NamedTuple):
    """One trial that has ended, for people who wait."""

    proposal: Proposal
    outcome: Outcome
    resumed: bool
    """True where an earlier run measured it."""
    measured: int
    budget: Budget
    spent_seconds: float
    search: Search


class Ended(NamedTuple):
    found: Found
    search: Search
    spent_seconds: float


class Campaign:
    def __init__(self, space: Space, plan: Plan, budget: Budget, study: Study, folder: Path) -> None:
        self._study, self._budget, self._folder = study, budget, folder
        self._spent = 0.0
        self.search = Search(space, plan._replace(trials=budget.trials, out_of_time=self._is_out_of_time))

    def run(self, measure: Measure, tell: Callable[[Progress], None]) -> Ended:
        """Runs until the search ends. Raises what `measure` and the study raise; what was measured is kept."""
        steps = self.search.run()
        proposal = next(steps)
        while True:
            outcome, resumed = self._outcome(proposal, measure)
            self._spent += outcome.wall_seconds
            measured = self.search.board.spent + 1
            tell(Progress(proposal, outcome, resumed, measured, self._budget, self._spent, self.search))
            try:
                proposal = steps.send(outcome)
            except StopIteration as stop:
                return Ended(stop.value, self.search, self._spent)

    def _outcome(self, proposal: Proposal, measure: Measure) -> tuple[Outcome, bool]:
        kept = self._study.kept(proposal.configuration)
        if kept is not None:
            return kept, True
        with self._study.trial(proposal) as running:
            began = time.monotonic()
            folder = self._folder / f"trial-{running.number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            found = measure(proposal.configuration, folder)
            if found.seconds is not None and not 0 < found.seconds < float("inf"):
                found = Outcome(Status.GARBAGE, None, f"a time of {found.seconds} s")
            running.outcome = found._replace(wall_seconds=time.monotonic() - began)
        return running.outcome, False

    def _is_out_of_time(self) -> bool:
        limit = self._budget.seconds
        return limit is not None and self._spent >= limit


class Change(NamedTuple):
    """One setting to change, as a recommendation names it."""

    target: str
    """The thing to change: nccl_env, deepspeed; launcher: a variable of the job."""
    key: str
    current: Value
    recommended: Value


class Subject(NamedTuple):
    kind: str
    """The kind of subject: nccl, zero, deepspeed."""
    space: Space
    measure: Measure
    objective: str
    """The meaning of a time: `seconds of a step`."""
    changes: Callable[[Settings], list[Change]]
    """The changes from the default to a configuration."""
    situation: Situation = Situation()
    """The situation that files of a recommendation are written from."""
    starts: tuple[Settings, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    """The settings that the campaign was started with, as JSON: enough to make the subject again."""
