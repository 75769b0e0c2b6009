"""The events that the training thread leaves for the aggregator: one list, in the order in which things happened.

An event is five numbers, appended to the list in one go: that costs a training thread least, and needs no lock. All
times are nanoseconds of CLOCK_MONOTONIC. The event of a collective is its record (records.py), which begins with its
word; every other event begins with a negative number that says which kind it is, and is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK
from laggard.trainer_hooks.record.records import RECORD_NUMBERS

EVENT_NUMBERS: Final = RECORD_NUMBERS

PHASE_ENTERED: Final = -1  # now, phase, elements of the model's input
PHASE_LEFT: Final = -2  # now
STEP_ENDED: Final = -3  # the next step, the correction of times from here on
STEP_ABANDONED: Final = -4  # the next step; too much of the step under way is unknown
WAITED: Final = -5  # nanoseconds that the segment waited for a collective whose own record does not count them
WAIT_COUNTED_APART: Final = -16  # less the word: such a collective

Append = Callable[[Iterable[int]], None]
"""Appends the five numbers of one event."""


class LaneLog:
    """The log of the collectives of one lane. `last`: the word of the collective launched last, which is the lane's
    index above LANE_SHIFT and below it the count 1, 2, ...; a count of 0: none was launched yet."""

    __slots__ = ("append", "index", "last")

    def __init__(self, index: int, append: Append) -> None:
        self.index = index
        self.last = index << LANE_SHIFT
        self.append = append

    def next_word(self) -> int:
        """The word of a collective that is launched now. The hot path does the same without a call."""
        self.last += 1
        return self.last

    def launched(self) -> int:
        """The number of collectives that have been launched so far."""
        return self.last & SEQUENCE_MASK


Launch = tuple[int, LaneLog, int, int, int]
"""A collective that was launched: its word, its lane's log, when the host issued it, its bytes, its step. A plain
tuple, because the hot path makes one for each collective; who wants one field of it asks the functions below."""


def word_of(launch: tuple[Any, ...]) -> int:
    word: int = launch[0]
    return word


def lane_log_of(launch: tuple[Any, ...]) -> LaneLog:
    log: LaneLog = launch[1]
    return log


def issued_at(launch: tuple[Any, ...]) -> int:
    """The time at which the host issued the collective, in nanoseconds of CLOCK_MONOTONIC."""
    issued: int = launch[2]
    return issued


def step_of(launch: tuple[Any, ...]) -> int:
    step: int = launch[4]
    return step
