"""The inputs, proposals and findings of a search, and the outcome of one trial, as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple

from laggard.tune.space import Value
from laggard.tune.statistics import TIE, Comparison


class Status(enum.Enum):
    OK = "ok"
    WRONG = "wrong"
    """It ran, and its results are not right."""
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    """It was killed at its deadline."""
    CRASHED = "crashed"
    GARBAGE = "garbage"
    """It ended well, and what it printed is not what was asked for: nothing is known of it."""
    LOST = "lost"
    """The tuner died while it ran: it is tried again."""


class Outcome(NamedTuple):
    status: Status
    seconds: float | None = None
    """The objective: less is better. None unless the status is OK."""
    detail: str = ""
    """One line: why it is not OK, or what else is to be known."""
    wall_seconds: float = 0.0
    """The time that the trial took, all in all."""
    parts: Mapping[str, float] = {}
    """Seconds by what was measured: `allreduce 1048576`."""


Settings = dict[str, Value]


MIN_ROUNDS: Final = 4


class Plan(NamedTuple):
    trials: int = 120
    """Evaluations, repeats included."""
    rounds: int = 8
    """Most rounds of the confirmation."""
    seed: int = 0
    tie: float = TIE
    starts: tuple[Settings, ...] = ()
    """The settings that a model recommends, best first."""
    out_of_time: Callable[[], bool] = lambda: False

    @property
    def rounds_kept(self) -> int:
        """Rounds for which trials are kept: a third of them, and never fewer than a comparison needs."""
        return min(self.rounds, max(MIN_ROUNDS, self.trials // 12))

    @property
    def most_rounds(self) -> int:
        """Twice as many, for where the noise is large, as far as the trials are many."""
        return max(self.rounds_kept, min(2 * self.rounds_kept, self.trials // 24))


class Proposal(NamedTuple):
    configuration: Settings
    phase: str
    """The reason why it is measured: warm-up, default, model, GROUP, branches, pairs, guesses, race, simplify,
    confirm."""


class Finalist(NamedTuple):
    configuration: Settings
    comparison: Comparison
    """The comparison with the default, in interleaved pairs."""


class Found(NamedTuple):
    best: Finalist | None
    """None: nothing is faster than the default, for certain."""
    finalists: tuple[Finalist, ...]
    """The fastest first."""
    tied: tuple[Settings, ...]
    """Finalists as fast as the best one, or not told apart from it."""
    ended: str
    """The reason why the search ended, one line."""
    groups_done: tuple[str, ...] = ()


Steps = Generator[Proposal, Outcome, "Found"]
Part = Generator[Proposal, Outcome, None]
