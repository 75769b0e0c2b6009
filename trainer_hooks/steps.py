"""The end of a step: by the engine, the loop, the optimizer, or the period of its collectives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from laggard.kit.constants import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.record.events import FORWARD, RECORD_NUMBERS, Sink, StepRecord, Totals
from laggard.trainer_hooks.record.recorder import Recorder

REPEATS: Final = 3


def smallest_period(tokens: Sequence[Hashable], repeats: int = REPEATS, least: int = 0) -> int | None:
    """Returns the smallest p such that the last `repeats` * p tokens are the same p tokens again and again, for at
    least `least` tokens; None where there is no such p.

    With the tokens read from the end, that is the smallest p at which the row agrees with itself, moved by p, for
    (repeats - 1) * p tokens: the Z function gives that for every p, in time linear in the tokens."""
    backwards = list(reversed(tokens))
    agreement = _z(backwards)
    for p in range(1, len(backwards) // repeats + 1):
        if agreement[p] >= max((repeats - 1) * p, least - p):
            return p
    return None


def _z(tokens: Sequence[Hashable]) -> list[int]:
    """The number of tokens, for each place, that are the same from there on as from the beginning on (Gusfield's Z
    algorithm)."""
    count = len(tokens)
    found = [0] * (count + 1)
    left = right = 0
    for place in range(1, count):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < count and tokens[length] == tokens[place + length]:
            length += 1
        found[place] = length
        if place + length > right:
            left, right = place, place + length
    return found


_MIN_COLLECTIVES: Final = 192
"""The number of collectives without a step, before a period is searched. Half of them must repeat with it, because
three equal ones in a row occur within many a step."""
_MAX_KEPT: Final = 4096  # collectives; a step of more than a third of them is not found
_PATIENCE_NS: Final = 1_800_000_000_000
"""The time that an engine or an optimizer which was made may take for its first step. Layers of one size repeat their
collectives within it, as those of ZeRO stage 3 and FSDP do: these are no steps."""
_COPYING: Final = frozenset({"broadcast", "all_gather", "scatter", "gather", "barrier"})
"""The operations that alone are no step of training: parameters are sent to all ranks when a model is built, loaded or
saved."""


class PeriodicSteps(Sink):
    """A sink that makes steps of the collectives it gets, from the third repetition on, and none any more once steps
    come from elsewhere. At which place of the true step a period begins is not known: a step made so has the right
    length and waits, and all else of it is in the phase `other`."""

    def __init__(self, add_step: Callable[[StepRecord], None], expected: Callable[[], bool] = lambda: False) -> None:
        """`expected`: whether something was made that will tell of steps, such as a DeepSpeed engine."""
        self._add_step, self._expected = add_step, expected
        self._began: int | None = None
        self._copying: list[bool] = []  # by lane
        self._kept: list[tuple[int, int, int, int]] = []  # issued, waited, and what makes the token: lane, bytes
        self._steps = 0
        self._disabled = False

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        self._copying.append(lane.op in _COPYING)

    def step(self, record: StepRecord, totals: Totals) -> None:
        if totals.steps > self._steps:
            self._disabled = True
            self._kept.clear()

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        if self._disabled:
            return
        for place in range(0, len(numbers), RECORD_NUMBERS):
            word, issued, _, waited, size = numbers[place : place + RECORD_NUMBERS]
            self._kept.append((issued, waited, word >> LANE_SHIFT, size))
        self._kept.sort()
        if len(self._kept) >= _MIN_COLLECTIVES and not self._is_early():
            self._add_steps()
        del self._kept[: max(0, len(self._kept) - _MAX_KEPT)]

    def _add_steps(self) -> None:
        period = smallest_period([entry[2:] for entry in self._kept], least=_MIN_COLLECTIVES // 2)
        if period is None or all(self._is_copying(entry[2]) for entry in self._kept[-period:]):
            return
        start = self._first_repetition(period)
        while start + period < len(self._kept):
            self._add_period(self._kept[start : start + period + 1])
            start += period
        self._kept = self._kept[start:]

    def _is_early(self) -> bool:
        """Whether steps may still come from elsewhere."""
        if self._began is None:
            self._began = self._kept[0][0]
        return self._expected() and self._kept[-1][0] - self._began < _PATIENCE_NS

    def _is_copying(self, lane: int) -> bool:
        return lane < len(self._copying) and self._copying[lane]

    def _first_repetition(self, period: int) -> int:
        """The place where the repetition begins that lasts to the end of the row."""
        tokens: list[Any] = [entry[2:] for entry in self._kept]
        start = len(tokens) - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        return start

    def _add_period(self, entries: Sequence[tuple[int, int, int, int]]) -> None:
        """Adds a step from the first of these collectives to the last, which begins the next step."""
        start, end = entries[0][0], entries[-1][0]
        waited = min(sum(entry[1] for entry in entries[:-1]), end - start)
        own = (*(0 for _ in PHASES[:-1]), end - start - waited)
        self._steps += 1
        self._add_step(StepRecord(self._steps - 1, start, end, own, waited, ()))


class StepBoundary:
    """One optimizer leads: its updates end the steps, and the updates of the others are part of a step. The leader is
    the first that updates, but of several that update one right after the other it is the last, and never one that
    updates more rarely than another. A step of a GAN's two optimizers is from one update of the leader to its next,
    whichever of the two it is. An optimizer that is made after the leader's last update leads from its own first update
    on: with it another training begins, as the next fold of a cross-validation.

    `has_begun`: whether there was an update. Before the first one, an optimizer may only make its state: see
    pytorch/training.py.

    `sole_updater`: the optimizer whose next update ends a step again, and changes nothing here; None: call update() to
    know.
    """

    def __init__(self) -> None:
        self.sole_updater: Hashable = None
        self.has_begun = False
        self._leader: Hashable = None
        self._since: set[Hashable] = set()  # those that updated since the leader did
        self._made_since: set[Hashable] = set()  # those that were made since then
        self._in_a_row = False
        self._began = 0  # the step of the first update
        self._at: dict[Hashable, int] = {}  # the step of each one's last update, while it did not lead

    def add(self, optimizer: Hashable) -> None:
        """`optimizer` has just been made."""
        if self._leader is not None:
            self._made_since.add(optimizer)

    def set_leader(self, optimizer: Hashable) -> None:
        """This optimizer leads, whichever did so far."""
        self._leader, self.sole_updater = optimizer, None
        self._made_since.clear()

    def update(self, optimizer: Hashable, worked: bool, step: int) -> bool:
        """`optimizer` has updated its parameters in `step`. `worked`: there was a forward or backward pass since the
        last update, so that this one does not follow right after it. Returns whether that ends the step."""
        if not self.has_begun:
            self._began, self.has_begun = step, True
        if worked:
            self._in_a_row = False
        if self._leader in (None, optimizer) or optimizer in self._since or optimizer in self._made_since:
            self._leader = self.sole_updater = optimizer
            self._since.clear()
            self._made_since.clear()
            self._in_a_row = True
            return True
        self.sole_updater = None
        is_rare = step - self._at.get(optimizer, self._began) > 1  # as the outer optimizer of local SGD
        self._at[optimizer] = step
        if self._in_a_row and not is_rare:
            self._leader = optimizer
        else:
            self._since.add(optimizer)
        return False


class LoopSteps:
    """Steps and phases by the loop's own word. In a *bare* loop, into which no hook sees, a step's time that has no
    name counts as forward; in others the hooks name it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.is_bare = False  # whether a step has begun into which no hook sees
        self._in_bare_step = False
        self._named = 0  # phases that are open, one inside the other

    def begin(self, bare: bool) -> None:
        """A step begins."""
        if bare and self._recorder.depth == 0:
            self.is_bare = self._in_bare_step = True
            self._recorder.enter(FORWARD)

    def end(self) -> None:
        """The step ends, and with it what is open in it."""
        while self._recorder.depth > 0:
            self._recorder.leave()
        self._in_bare_step, self._named = False, 0
        self._recorder.end_step(self._recorder.step + 1)

    def enter(self, phase: int) -> None:
        """The loop names what it does from here on."""
        if self._in_bare_step and self._named == 0:
            self._recorder.leave()
        self._named += 1
        self._recorder.enter(phase)

    def leave(self) -> None:
        """Ends what was named last."""
        if self._named > 0:  # else the step ended meanwhile, and all in it
            self._named -= 1
            self._recorder.leave()
            if self._in_bare_step and self._named == 0:
                self._recorder.enter(FORWARD)


class EngineSteps:
    """Ends the recorder's steps by the optimizer steps that the engines take."""

    def __init__(self, recorder: Recorder) -> None:
        self._boundary = StepBoundary()
        self._recorder = recorder
        self._engines = 0

    def add_engine(self) -> int:
        """Adds an engine. Returns its number, 1 and up, the same on every rank."""
        self._engines += 1
        self._boundary.add(self._engines)
        return self._engines

    def updated(self, engine: int, global_steps: int) -> None:
        """Engine number `engine` has taken its optimizer's step. An engine alone numbers the steps, also after a
        checkpoint was loaded. Several have a count each: the steps are those of the engine that leads, numbered on from
        here."""
        if self._boundary.update(engine, True, self._recorder.step):
            self._recorder.end_step(global_steps if self._engines == 1 else self._recorder.step + 1)
