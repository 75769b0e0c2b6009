"""The space that a search may try: parameters in groups, with conditions and constraints; the inputs, proposals and
findings of a search, and the outcome of one trial. Pure.

A configuration maps every parameter's name to a value; None is `unset`. A parameter whose condition does not hold has
its default, so that configurations which mean the same are the same.
"""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.kit.errors import UsageError
from laggard.tune.statistics import TIE, Comparison

Value = str | int | bool | None
Configuration = Mapping[str, Value]

_MAX_COUNTED: Final = 200_000


class Parameter(NamedTuple):
    name: str
    choices: tuple[Value, ...]
    """Neighbours stand beside each other where they have an order."""
    default: Value
    group: str = ""
    """Groups are turned on one after the other, in the order of the parameters."""
    needs: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    """The parameter acts only where each of these others has one of these values."""


class Constraint(NamedTuple):
    text: str
    """The condition that must hold, as a person reads it."""
    holds: Callable[[Configuration], bool]


class Space(NamedTuple):
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    needs_as_much_memory: Callable[[Configuration, Configuration], bool] | None = None
    """The function that returns whether the first needs at least the memory of the second: it is not tried where the
    second ran out."""

    @property
    def default(self) -> dict[str, Value]:
        return {each.name: each.default for each in self.parameters}

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.group for each in self.parameters))


def is_active(parameter: Parameter, configuration: Configuration) -> bool:
    return all(configuration[name] in values for name, values in parameter.needs)


def normal(space: Space, configuration: Configuration) -> dict[str, Value]:
    """Returns the configuration with the default of every parameter that does not act in it."""
    found = {**space.default, **configuration}
    for parameter in space.parameters:  # conditions look backwards only: check_space sees to it
        if not is_active(parameter, found):
            found[parameter.name] = parameter.default
    return found


def allowed(space: Space, configuration: Configuration) -> bool:
    return all(each.holds(configuration) for each in space.constraints)


def key(configuration: Configuration) -> str:
    """Returns a text that two configurations share when they are the same."""
    return json.dumps(dict(sorted(configuration.items())))


def changes(space: Space, configuration: Configuration) -> dict[str, Value]:
    """Returns what differs from the default."""
    return {name: value for name, value in configuration.items() if value != space.default[name]}


def configurations(space: Space) -> Iterator[dict[str, Value]]:
    """Yields every configuration that is allowed, each once."""
    seen = set()
    for values in itertools.product(*(each.choices for each in space.parameters)):
        found = normal(space, dict(zip(space.default, values, strict=True)))
        if key(found) not in seen and allowed(space, found):
            seen.add(key(found))
            yield found


def fingerprint(space: Space) -> str:
    """Returns what makes two spaces the same: a study holds trials of one."""
    rows = [[each.name, each.choices, each.default, each.group, each.needs] for each in space.parameters]
    return json.dumps([rows, [each.text for each in space.constraints]])


def check_space(space: Space) -> None:
    """Raises UsageError for a space that contradicts itself, or in which nothing can be tried."""
    seen: set[str] = set()
    for parameter in space.parameters:
        _check_parameter(parameter, seen)
        seen.add(parameter.name)
    broken = [each.text for each in space.constraints if not each.holds(space.default)]
    if broken:
        raise UsageError(f"the default itself breaks `{broken[0]}`: change the default or the constraint")
    if next((each for each in itertools.islice(configurations(space), _MAX_COUNTED) if each != space.default), None):
        return
    raise UsageError("no configuration but the default is allowed: there is nothing to tune")


def _check_parameter(parameter: Parameter, before: set[str]) -> None:
    if parameter.name in before:
        raise UsageError(f"{parameter.name} stands twice in the space: name it once")
    if len(set(map(repr, parameter.choices))) != len(parameter.choices) or not parameter.choices:
        raise UsageError(f"{parameter.name} has no values, or one of them twice: give each once")
    if parameter.default not in parameter.choices:
        raise UsageError(f"{parameter.name} has the default {parameter.default!r}, which is none of its values")
    for name, _ in parameter.needs:
        if name not in before:
            raise UsageError(f"{parameter.name} depends on {name}, which does not stand before it")


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


Steps = Generator[Proposal, Outcome, "Found"]
Part = Generator[Proposal, Outcome, None]
