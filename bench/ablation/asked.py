"""Asks about one case: what its verdict is without each rule, and which thresholds decide it."""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, TypeVar

from golden.case import Case, Loaded, load
from golden.row import Row, alike, row_of

from ablation.judged import judged
from ablation.rules import READING
from ablation.switch import Rule, switched_off, watched
from ablation.thresholds import Threshold, moved, moved_value, readers, value_of
from laggard.locate import verdict
from laggard.model import Location
from laggard.recording.judged import judge

_LOCATE: Final = str(Path(verdict.__file__).parent)
_T = TypeVar("_T")


class Without(NamedTuple):
    """A case without one rule, where that changes the answer. `failed`: the rest of locate fails then."""

    right: bool
    innocents: int
    failed: str = ""


class Answer(NamedTuple):
    """What was found out about one case. `asked`: the rules that its verdict comes to, by name; `acted`: those that say
    something else than nothing would; `without`: what changes without each of them that changes anything. `read`: the
    thresholds in the functions that it comes to; `decide`: by which factor each was moved that decides."""

    case: str
    right: bool
    innocents: int
    asked: tuple[str, ...] = ()
    acted: tuple[str, ...] = ()
    without: Mapping[str, Without] = {}
    read: tuple[str, ...] = ()
    decide: Mapping[str, float] = {}


class Questions(NamedTuple):
    """What is asked of a case. `thresholds`: those of which no case is known that they decide; each is moved by each of
    the `factors`. `salt`: of the draw of their groups."""

    rules: Sequence[Rule] = ()
    thresholds: Sequence[Threshold] = ()
    factors: Sequence[float] = ()
    salt: int = 0


def answered(case: Case, questions: Questions) -> Answer:
    """Reads the case and judges it as it is, then without each rule that acted, then with thresholds moved. A rule that
    acts while a recording is read is off while it is read anew. Raises UsageError where laggard reads none of it."""
    reading = [rule for rule in questions.rules if rule in READING]
    with watched(reading) as read_with:
        loaded = load(case)
    location, places = _noted(loaded)
    usual, own = row_of(location), judged(loaded.truth, location)
    with watched(rule for rule in questions.rules if rule not in READING) as judged_with:
        _locate(loaded)
    acted = read_with.acted | judged_with.acted
    without = {}
    for rule in (each for each in questions.rules if each.name in acted):
        with switched_off(rule):
            row, worth = _judged(load(case) if rule in READING else loaded)
        if row is None or not alike(row, usual):
            without[rule.name] = worth
    read = [each for each in questions.thresholds if readers(each.module, each.name) & places]
    return Answer(
        case.name,
        own.right,
        own.innocents,
        tuple(sorted(read_with.asked | judged_with.asked)),
        tuple(sorted(acted)),
        without,
        tuple(map(str, read)),
        {str(each): factor for each, factor in _deciding(loaded, usual, read, questions).items()},
    )


def _locate(loaded: Loaded) -> Location:
    return judge(loaded.recording).location


def _noted(loaded: Loaded) -> tuple[Location, frozenset[tuple[str, int]]]:
    """The location, and the functions of locate that it took, each as its file and first line."""
    called = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_LOCATE):
            called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        location = _locate(loaded)
    finally:
        sys.setprofile(None)
    return location, frozenset(called)


def _judged(loaded: Loaded) -> tuple[Row | None, Without]:
    try:
        location = _locate(loaded)
    except Exception as failure:  # a rule may guard what comes after it
        return None, Without(False, 0, f"{type(failure).__name__}: {failure}"[:200])
    return row_of(location), Without(*judged(loaded.truth, location))


def _deciding(loaded: Loaded, usual: Row, read: Sequence[Threshold], questions: Questions) -> dict[Threshold, float]:
    """The thresholds that change the answer when they alone are moved, each with a factor that does. Many are moved at
    once, and only groups that change something are divided. Two that cancel each other hide in a group: groups are
    drawn anew for each case and each salt."""
    draw = random.Random(f"{questions.salt} {loaded.name}")
    found: dict[Threshold, float] = {}
    for factor in questions.factors:

        def is_same(group: Sequence[Threshold], factor: float = factor) -> bool:
            with moved({each: moved_value(value_of(each), factor) for each in group}):
                try:
                    return alike(row_of(_locate(loaded)), usual)
                except Exception:  # half of the least number of steps may be none
                    return False

        left = [each for each in read if each not in found]
        draw.shuffle(left)
        found |= dict.fromkeys((*deciding(left[::2], is_same), *deciding(left[1::2], is_same)), factor)
    return found


def deciding(group: Sequence[_T], is_same: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """Those of a group that change something by themselves, as far as no other hides it."""
    if not group or is_same(group):
        return []
    if len(group) == 1:
        return list(group)
    half = len(group) // 2
    return [*deciding(group[:half], is_same), *deciding(group[half:], is_same)]
