"""What the training thread leaves for the ledger: notes in one list, in the order in which things happened.

A note is five numbers, added to the list in one go: that costs a training thread least, and needs no lock. All times
are nanoseconds of CLOCK_MONOTONIC. A collective is noted as its record (records.py), which begins with its word; every
other note begins with a negative number that says what it is, and has zeros at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK

NOTE_NUMBERS: Final = 5

ENTERED: Final = -1  # now, phase, whether a DataLoader was seen
LEFT: Final = -2  # now
STEP_ENDED: Final = -3  # the next step, by how much times are put right from here on
ABANDONED: Final = -4  # the next step: too much of what is under way is unknown
WAITED: Final = -5  # nanoseconds that the segment waited for a collective whose record does not tell it:
TIMED_ELSEWHERE: Final = -16  # less the word: such a collective

Note = Callable[[Iterable[int]], None]


class LaneLog:
    """Where the collectives of one lane are noted. `last`: the word of the one launched last, with the lane's index and
    below it 1, 2, ...; 0 of them: none yet."""

    __slots__ = ("index", "last", "put")

    def __init__(self, index: int, put: Note) -> None:
        self.index = index
        self.last = index << LANE_SHIFT
        self.put = put

    def take(self) -> int:
        """The word of a collective that is launched now. The hot path does the same without a call."""
        self.last += 1
        return self.last

    def launched(self) -> int:
        """How many have been launched so far."""
        return self.last & SEQUENCE_MASK


Launched = tuple[int, LaneLog, int, int, int]
"""A collective under way: word, log, issued (by the host), bytes, step. A plain tuple: it is made on the hot path."""
