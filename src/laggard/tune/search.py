"""The search: what to measure next, until the best few are confirmed. A generator: it yields proposals and is sent
their outcomes, and does nothing else, so that a campaign resumes by being sent again what was measured.

The default first, several times: the noise. Then what the cost model recommends. Then passes over the parameters,
group by group, each value measured beside the best so far; a value that looks better is repeated until it is, or is
not. Then, among the parameters that mattered: other values with the rest fitted to them, pairs, and guesses by TPE.
Trials that are left go to the noise: the best and what is one change away, in turns. At last the best few and the
default in turns, on which the gain alone rests: no first look that was lucky counts in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Sequence
from typing import Final

from laggard.tune.board import Board, guess, newly_active, with_value
from laggard.tune.confirm import FINALISTS, confirm
from laggard.tune.plan import (
    Found,
    Outcome,
    Parameter,
    Part,
    Plan,
    Proposal,
    Settings,
    Space,
    Steps,
    is_active,
    key,
    normal,
)

_DEFAULT_FIRST: Final = 3
_DEFAULT_EVERY: Final = 12
"""The number of trials after which the default is measured again: the machine may have changed."""
_MAX_DUELS: Final = 5
_PASSES: Final = 3
_MAX_RESTARTS: Final = 3
_BRANCHES: Final = 2
_PATIENCE: Final = 12
_MAX_PAIRED_VARIABLES: Final = 5
_SMALL_GROUP: Final = 24
"""The number of combinations of a group's values up to which all of them are looked at."""


class Search:
    """One search. `board` may be read at any time; `run` makes the generator."""

    def __init__(self, space: Space, plan: Plan) -> None:
        self.space, self.plan, self.board = space, plan, Board(space)
        self.best: Settings = self.board.default
        self.phase = "default"
        self._spread: dict[str, float] = {}
        self._fell_back = False

    def run(self) -> Steps:
        yield from self._warm_up()
        for _ in range(_DEFAULT_FIRST):
            if key(self.board.default) not in self.board.failed:
                yield from self._measure(self.board.default, "default")
        if not self.board.repeats(self.board.default) or key(self.board.default) in self.board.failed:
            why = self.board.failed[key(self.board.default)].value
            return Found(None, (), (), f"the default itself does not run ({why}): nothing can be compared with it")
        yield from self._explore()
        found = yield from confirm(self.board, self.plan, self.best)
        return found._replace(ended=found.ended or self._ending(bool(found.finalists)))

    def left(self) -> int:
        """Returns the evaluations that are left before the confirmation."""
        return 0 if self.plan.out_of_time() else self.plan.trials - self.board.spent - self._reserve()

    def _reserve(self) -> int:
        return (FINALISTS + 1) * self.plan.most_rounds

    def _explore(self) -> Part:
        yield from self._try(self.plan.starts, "model")
        for _ in range(_MAX_RESTARTS):
            self._fell_back = False
            yield from self._all_groups()
            if not self._fell_back:
                break
        for turn in range(1, _PASSES):
            before = self.best
            yield from self._pass(self._important(), f"pass {turn + 1}")
            if self.best == before:
                break
        yield from self._branches()
        yield from self._pairs()
        yield from self._guesses()
        yield from self._race()
        yield from self._simplify()

    def _all_groups(self) -> Part:
        for group in self.space.groups:
            members = [each for each in self.space.parameters if each.group == group]
            if math.prod(len(each.choices) for each in members) <= _SMALL_GROUP:
                yield from self._try(self._together(members), group or "all")
            yield from self._pass(members, group or "all")

    def _together(self, members: Sequence[Parameter]) -> Iterable[Settings]:
        """Returns the best so far with all combinations of these parameters' values, those with one change first: a
        ZeRO stage may be the fastest at another micro-batch than the default's, with which it runs out of memory."""
        found = []
        for values in itertools.product(*(each.choices for each in members)):
            own = {each.name: value for each, value in zip(members, values, strict=True)}
            found.append(normal(self.space, {**self.best, **own}))
        return sorted(found, key=lambda each: sum(each[name] != value for name, value in self.best.items()))

    def _warm_up(self) -> Part:
        """Runs the default once for the machine's caches and clocks: only that it fails counts."""
        outcome = yield Proposal(dict(self.board.default), "warm-up")
        self.board.add(self.board.default, outcome, timed=False)

    def _measure(self, configuration: Settings, phase: str) -> Part:
        self.phase = phase
        outcome = yield Proposal(dict(configuration), phase)
        self.board.add(configuration, outcome)

    def _look(self, configuration: Settings, phase: str) -> Generator[Proposal, Outcome, float | None]:
        """Measures a configuration once, if it was not; returns its mean, None where it may not be tried or failed."""
        if not self.board.may_try(configuration):
            return None
        if not self.board.repeats(configuration):
            if self.left() <= 0:
                return None
            if self.board.spent % _DEFAULT_EVERY == 0:
                yield from self._measure(self.board.default, "default")
            yield from self._measure(configuration, phase)
        return self.board.mean(configuration)

    def _try(self, candidates: Iterable[Settings], phase: str) -> Part:
        """Looks at candidates, and takes the best of them where it beats the best so far."""
        looks = []
        for each in candidates:
            mean = yield from self._look(each, phase)
            if mean is not None:
                looks.append((mean, key(each), each))
        for _, _, candidate in sorted(looks)[:2]:
            yield from self._duel(candidate, phase)

    def _duel(self, candidate: Settings, phase: str) -> Part:
        """Repeats the candidate and the best so far in turns, until one is faster or the noise allows no answer."""
        while True:
            new, old = self.board.mean(candidate), self.board.mean(self.best)
            if new is None or candidate == self.best:
                return
            if old is None:
                self._fall_back()
                continue
            repeats = [self.board.repeats(each) for each in (candidate, self.best)]
            error = self.board.noise() * math.sqrt(sum(1 / each for each in repeats))
            sure = abs(new - old) > 2.5 * error
            if new - old > error or sure or min(repeats) >= _MAX_DUELS or self.left() <= 0:
                if new < old - (0 if sure else error):
                    self.best = dict(candidate)
                return
            fewer = candidate if repeats[0] <= repeats[1] else self.best
            yield from self._measure(fewer, phase)

    def _fall_back(self) -> None:
        """The best so far failed when it was repeated, or has a value that made results wrong: the next one takes its
        place, and what was looked at beside it has to be looked at again."""
        self._fell_back = True
        self.best = next(iter(self.board.ranking()), self.board.default)

    def _pass(self, parameters: Sequence[Parameter], phase: str) -> Part:
        """Goes through the parameters, the most promising first: what does nothing, and looked good by luck, might bar
        what gains much, or take its trials."""
        looks = {}
        for parameter in parameters:
            looks[parameter.name] = yield from self._first_look(parameter, phase)
        for parameter in sorted(parameters, key=lambda each: looks[each.name]):
            if self.left() <= 0:
                return
            if self.board.mean(self.best) is None:
                self._fall_back()
            if is_active(parameter, self.best):
                candidates = list(self._neighbours(parameter, self.best))
                yield from self._try(candidates, phase)
                self._note_spread(parameter, candidates)

    def _first_look(self, parameter: Parameter, phase: str) -> Generator[Proposal, Outcome, float]:
        """Returns the mean of the parameter's best value beside the best so far, infinite where it acts nowhere."""
        best = math.inf
        for each in list(self._changed_in(parameter)):
            mean = yield from self._look(each, phase)
            best = min(best, math.inf if mean is None else mean)
        return best

    def _neighbours(self, parameter: Parameter, base: Settings) -> Iterable[Settings]:
        """Yields the base with the parameter's other values; where a value turns other parameters on, with theirs."""
        for value in parameter.choices:
            changed = with_value(self.space, base, parameter, value)
            if changed == base:
                continue
            yield changed
            for child in newly_active(self.space, base, changed):
                for other in child.choices:
                    if other != child.default:
                        yield with_value(self.space, changed, child, other)

    def _note_spread(self, parameter: Parameter, candidates: Iterable[Settings]) -> None:
        means = [mean for each in candidates if (mean := self.board.mean(each)) is not None]
        own = self.board.mean(self.best)
        if means and own is not None:
            spread = max([*means, own]) - min([*means, own])
            self._spread[parameter.name] = max(spread, self._spread.get(parameter.name, 0.0))

    def _important(self) -> list[Parameter]:
        """Returns the parameters whose values differ by more than the noise, the most important first."""
        least = max(2.5 * self.board.noise(), self.plan.tie / 2)
        known = [each for each in self.space.parameters if self._spread.get(each.name, 0.0) > least]
        return sorted(known, key=lambda each: -self._spread[each.name])

    def _ranked_values(self, parameter: Parameter) -> list[Settings]:
        """Returns the best configuration with the parameter's other values, the fastest first."""
        found = []
        for value in parameter.choices:
            changed = with_value(self.space, self.best, parameter, value)
            mean = self.board.mean(changed)
            if changed != self.best and mean is not None:
                found.append((mean, key(changed), changed))
        return [each for _, _, each in sorted(found)]

    def _branches(self) -> Part:
        """Gives other values of what matters most a fair chance: the rest is fitted to them before they are judged."""
        for parameter in self._important()[:_BRANCHES]:
            for base in self._ranked_values(parameter)[:_BRANCHES]:
                yield from self._fit_rest(parameter, base)

    def _fit_rest(self, parameter: Parameter, base: Settings) -> Part:
        local = base
        for other in self._important():
            if other == parameter or not is_active(other, local):
                continue
            looks = [(self.board.mean(local) or math.inf, key(local), local)]
            for each in list(self._neighbours(other, local)):
                mean = yield from self._look(each, "branches")
                looks += [] if mean is None else [(mean, key(each), each)]
            local = min(looks)[2]
        yield from self._duel(local, "branches")

    def _pairs(self) -> Part:
        """Changes two parameters at once: what each alone does not show."""
        for one, two in itertools.combinations(self._important()[:4], 2):
            candidates = [
                with_value(self.space, first, two, value)
                for first in self._ranked_values(one)[:2]
                for value in [each[two.name] for each in self._ranked_values(two)[:2]]
            ]
            yield from self._try(candidates, "pairs")

    def _guesses(self) -> Part:
        idle = 0
        while idle < _PATIENCE and self.left() > 0:
            found = guess(self.board, self.plan.seed + self.board.spent)
            if found is None:
                return
            before = self.best
            yield from self._try([found], "guesses")
            idle = idle + 1 if self.best == before else 0
            if self.best != before:
                yield from self._pass(self._important()[:3], "guesses")

    def _race(self) -> Part:
        """Spends what is left on the noise: the best so far and all that is one change away, then two, are repeated in
        turns, until none can be better by what counts. One that is better takes its place, and is raced in turn."""
        far = False
        while self.left() > 0:
            before = self.best
            rivals = list(self._two_changes() if far else self._one_change())
            for each in rivals:
                yield from self._look(each, "race")
            yield from self._repeat(rivals, "race")
            self._take_best_of(rivals)
            if self.best == before and far:
                return
            far = self.best == before

    def _one_change(self) -> Iterable[Settings]:
        for parameter in self.space.parameters:
            yield from self._changed_in(parameter)

    def _two_changes(self) -> Iterable[Settings]:
        """Yields pairs of changes of what matters."""
        for one, two in itertools.combinations(self._important()[:_MAX_PAIRED_VARIABLES], 2):
            for first in self._changed_in(one):
                yield from self._neighbours(two, first) if is_active(two, first) else ()

    def _changed_in(self, parameter: Parameter) -> Iterable[Settings]:
        return self._neighbours(parameter, self.best) if is_active(parameter, self.best) else ()

    def _repeat(self, rivals: Sequence[Settings], phase: str) -> Part:
        """Repeats the best and the rivals that may be faster, until one is for certain, or none may be by what
        counts."""
        while self.left() > 0 and self.board.mean(self.best) is not None:
            still = [each for each in rivals if self._may_be_faster(each)]
            if not still or any(self._lead(each) > 2.5 * self._error(each) for each in still):
                return
            for each in (self.board.default, self.best, *still):
                if self.left() > 0 and key(each) not in self.board.failed:
                    yield from self._measure(each, phase)

    def _may_be_faster(self, rival: Settings) -> bool:
        """One time says little: something else may have run on the machine for a moment."""
        if self.board.repeats(rival) < 2:
            return self.board.mean(rival) is not None
        return self._lead(rival) > -2 * self._error(rival) and self._error(rival) > self.plan.tie / 3

    def _take_best_of(self, rivals: Sequence[Settings]) -> None:
        if self.board.mean(self.best) is None:
            self._fall_back()
            return
        first = max(rivals, key=self._lead, default=self.best)
        if self._lead(first) > self._error(first):
            self.best = first

    def _lead(self, rival: Settings) -> float:
        """The logarithm of how much faster the rival is than the best so far."""
        new, old = self.board.mean(rival), self.board.mean(self.best)
        return -math.inf if new is None or old is None else old - new

    def _error(self, rival: Settings) -> float:
        """The standard error of the rival's lead."""
        repeats = [self.board.repeats(each) for each in (rival, self.best)]
        return self.board.noise() * math.sqrt(sum(1 / each for each in repeats)) if all(repeats) else math.inf

    def _simplify(self) -> Part:
        """Takes back what changes nothing, the least important first: nobody should set what does not help."""
        for parameter in sorted(self.space.parameters, key=lambda each: self._spread.get(each.name, 0.0)):
            plain = with_value(self.space, self.best, parameter, parameter.default)
            if plain == self.best or plain == self.board.default:
                continue
            yield from self._look(plain, "simplify")
            yield from self._repeat([plain], "simplify")
            if self._lead(plain) >= -max(min(1.5 * self._error(plain), self.plan.tie), self.plan.tie / 4):
                self.best = plain

    def _ending(self, any_finalist: bool) -> str:
        if not any_finalist:
            return "nothing but the default ran with right results"
        if self.plan.out_of_time():
            return "the time was spent"
        if self.plan.trials - self.board.spent <= self._reserve():
            return "the trials were spent"
        return "nothing that was left to try looked better"
