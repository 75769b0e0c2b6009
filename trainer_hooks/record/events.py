"""The events that the training thread leaves for the aggregator: one list, in the order in which things happened.

An event is five numbers, appended to the list in one go: that costs a training thread least, and needs no lock. All
times are nanoseconds of CLOCK_MONOTONIC. The event of a collective is its record (below), which begins with its
word; every other event begins with a negative number that says which kind it is, and is filled up with zeros.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from laggard.kit.constants import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK, WORD_CURRENT, WORD_ISSUED, WORD_PHASE

INPUT, FORWARD, BACKWARD, OPTIMIZER, BETWEEN_STEPS, EVALUATION, CHECKPOINT, LOGGING, OTHER = range(len(PHASES))
NO_PHASE: Final = -1

# The records of a rank, and where they go. Times in nanoseconds of CLOCK_MONOTONIC.

RECORD_NUMBERS: Final = 5
"""The number of numbers that a collective is: its word, its arrival, its end (0: never seen to end), how long the rank
waited in it, and its bytes. The word is the lane's index << LANE_SHIFT | the collective's sequence number in the lane.
The arrival is when the rank was ready: on a device when its stream came there, else the call. Records travel as flat
lists of numbers, five after five."""


class Span(NamedTuple):
    """A phase as it ran, by its index in constants.PHASES; `micro` counts the forward passes of the step, from 0."""

    phase: int
    start: int
    end: int
    micro: int


class StepRecord(NamedTuple):
    """One optimizer step: end - start = sum(phases) + waited."""

    step: int
    start: int
    end: int
    phases: tuple[int, ...]  # own time, in the order of constants.PHASES
    waited: int
    spans: tuple[Span, ...]
    work: int = 0  # elements of the model's inputs; 0: not seen


class Totals:
    """Cumulative counters of the rank, updated in place; the same as rankfile.Counters."""

    def __init__(self) -> None:
        self.steps = 0
        self.last_step = -1
        self.step_ns = 0
        self.phases_ns = [0] * len(PHASES)
        self.waited_ns = 0
        self.work = 0
        self.lost = 0
        self.errors = 0
        self.lanes: list[int] = []  # count, time blocked, bytes of each lane, one after the other

    def add(self, record: StepRecord) -> None:
        self.steps += 1
        self.last_step = record.step
        self.step_ns += record.end - record.start
        self.phases_ns = [total + own for total, own in zip(self.phases_ns, record.phases, strict=True)]
        self.waited_ns += record.waited
        self.work += record.work


class Sink:
    """Where records go; this one keeps nothing."""

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        """Called once a lane, in the order of their indices, before the first collective of the lane."""

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        """`launched`: when the host launched the collectives that were timed on a device, by their words."""

    def step(self, record: StepRecord, totals: Totals) -> None: ...

    def flush(self, totals: Totals) -> None:
        """Called when there is nothing more for the moment."""

    def close(self) -> None: ...


EVENT_NUMBERS: Final = RECORD_NUMBERS

PHASE_ENTERED: Final = -1  # now, phase, elements of the model's input
PHASE_LEFT: Final = -2  # now
STEP_ENDED: Final = -3  # the next step, the correction of times from here on
STEP_ABANDONED: Final = -4  # the next step, when it begins (0: with its first phase); of this one too much is unknown
WAITED: Final = -5  # nanoseconds that the segment waited for a collective whose own record does not count them
UNTIMED: Final = -6  # a collective that is over, of whose times nothing is known: its word, bytes, and launch
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


word_of: Final[Callable[[tuple[Any, ...]], int]] = operator.itemgetter(0)
lane_log_of: Final[Callable[[tuple[Any, ...]], LaneLog]] = operator.itemgetter(1)
issued_at: Final[Callable[[tuple[Any, ...]], int]] = operator.itemgetter(2)
"""The time at which the host issued the collective, in nanoseconds of CLOCK_MONOTONIC."""
step_of: Final[Callable[[tuple[Any, ...]], int]] = operator.itemgetter(4)


def untimed(launches: Iterable[Launch]) -> list[int]:
    """The events of collectives that are over, and of whose times nothing is known."""
    return [number for word, _, issued, size, _ in launches for number in (UNTIMED, word, size, issued, 0)]


def phase_name(phase: int) -> str | None:
    return PHASES[phase] if 0 <= phase < len(PHASES) else None


def in_flight(lanes: Sequence[Lane], lane: int, sequence: int, issued: int, now: int) -> dict[str, Any] | None:
    """The collective that was issued then and is not over, for JSON; None where its lane is not known yet."""
    if lane >= len(lanes):
        return None
    of = lanes[lane]
    flight = {"op": of.op, "group": of.group, "seq": sequence, "seconds": max(0, now - issued) / 1e9}
    return flight if of.peer < 0 else {**flight, "peer": of.peer}


def standing(words: memoryview, lanes: Sequence[Lane], now: int) -> dict[str, Any]:
    """The phase and the collective that the training thread is in, by the live words, for JSON. It may leave the
    collective while this thread reads: then it is in none for long."""
    issued, current, phase = words[WORD_ISSUED], words[WORD_CURRENT], words[WORD_PHASE]
    flight = None
    if issued and issued == words[WORD_ISSUED]:
        flight = in_flight(lanes, current >> LANE_SHIFT, current & SEQUENCE_MASK, issued, now)
    return {"phase": phase_name(phase), "in_flight": flight}


# Collectives that are launched and that nobody has waited for yet, by the work (torch's handle) that stands for them.
#
# A work is known by its id(). It is not held: it holds its tensors, and a script may poll it with is_completed() and
# drop them. A work that was dropped without a wait leaves its id() to another. One work can stand for all collectives
# of a batch. Pure bookkeeping, the same for collectives that the host's clock times and for those that a device times.

LATE_STEPS: Final = 64
"""The number of steps after which nobody waits for a collective any more, on the host's clock. Our choice: gradients
that are applied late are so by some steps. On a device each of them holds marks."""

_OTHERS_LIMIT: Final = 4096  # works launched and not waited for, before the oldest are given up

Entry = TypeVar("Entry", bound=tuple[Any, ...])
"""A pending collective: a Launch, or a tuple that begins as a Launch does."""


class PendingWork(Generic[Entry]):
    """The pending collectives of one process. `never_ended` is called with those that were never seen to end: nobody
    waited for them by the end of `late_steps` steps after theirs.

    `key`, `newest`, `others` and `batches` belong to the hot path: the id() of the work launched last and its
    collective (`key` is 0 once somebody has waited for it, as for most before the next is launched), the others by the
    id() of their works, or by a token where a future stands for them (`promised`, by the id() of work and future), and
    the batches by the id() of the one work that stands for each. Before a work becomes the
    newest, whoever puts it there calls demote_newest() if there is one.
    """

    def __init__(self, never_ended: Callable[[Sequence[Entry]], None], late_steps: int = 1) -> None:
        self.key = 0
        self.newest: Entry | None = None
        self.others: dict[int, Entry] = {}
        self.batches: dict[int, list[Entry]] = {}
        self.dropped: list[Entry] = []
        self.promised: dict[int, tuple[tuple[int, ...], object]] = {}
        self._tokens = itertools.count(-1, -1)  # no id() is one
        self._batch_began: int | None = None
        self._never_ended, self._late_steps = never_ended, late_steps

    def __len__(self) -> int:
        return (self.key != 0) + len(self.others) + len(self.batches) + len(self.dropped)

    def __iter__(self) -> Iterator[Entry]:
        self.demote_newest()
        return itertools.chain(self.dropped, self.others.values(), *self.batches.values())

    def add(self, work: object, entry: Entry) -> None:
        """`work` was launched and stands for `entry`."""
        if self.key:
            self.demote_newest(work)
        self.key, self.newest = id(work), entry

    def get(self, work: object) -> Entry | None:
        """The collective that a work stands for, or the last of a batch. None: the work is not among these."""
        if id(work) == self.key:
            return self.newest
        return self.batches.get(id(work), [self.others.get(id(work))])[-1]

    def pop(self, work: object) -> Entry | None:
        """Removes and returns the collective of a work that somebody waits for. None: the work is not among these."""
        if id(work) != self.key:
            return self.others.pop(id(work), None)
        self.key = 0
        return self.newest

    def promise(self, future: object, sources: Iterable[object]) -> None:
        """Whoever waits for `future` waits for what `sources`, works or futures, stand for. These may be gone by then,
        and others have their id(): so the collectives are kept by tokens, as long as the future is there."""
        tokens: list[int] = []
        for source in sources:
            if id(source) not in self.promised:
                kept = weakref.ref(source, functools.partial(self._forget, id(source)))
                new = {next(self._tokens): entry for entry in self.awaited(source)}
                self.others |= new
                self.promised[id(source)] = tuple(new), kept
            tokens += self.promised[id(source)][0]
        self.promised[id(future)] = tuple(tokens), weakref.ref(future, functools.partial(self._forget, id(future)))

    def _forget(self, key: int, _: object) -> None:
        self.promised.pop(key, None)

    def awaited(self, waited_for: object) -> list[Entry]:
        """Removes and returns what somebody waits for: the collective of a work, those of a batch, or those that a
        future stands for. Empty: nothing, or they were waited for before."""
        if self.batches and id(waited_for) in self.batches:
            return self.batches.pop(id(waited_for))
        if (entry := self.pop(waited_for)) is not None:
            return [entry]
        tokens = self.promised.pop(id(waited_for), ((), None))[0]
        return [found for token in tokens if (found := self.others.pop(token, None)) is not None]

    def demote_newest(self, successor: object = None) -> None:
        """Puts the newest work among the others. Another one with its id() was dropped, and so was one with the id() of
        `successor`, which has just been made."""
        if self.key:
            if self.key in self.others:
                self.dropped.append(self.others[self.key])
            self.others[self.key] = self.newest  # type: ignore[assignment]
            self.key = 0
        if id(successor) in self.others:
            self.dropped.append(self.others.pop(id(successor)))

    def take(self, since: int, logs: Collection[int] | None = None) -> list[Entry]:
        """Removes and returns the collectives issued at or after `since`, in that order. `logs`: only those of the lane
        logs with these id()s."""

        self.demote_newest()

        def chosen(entry: Entry) -> bool:
            return issued_at(entry) >= since and (logs is None or id(lane_log_of(entry)) in logs)

        taken = [entry for entry in self.dropped if chosen(entry)]
        self.dropped = [entry for entry in self.dropped if not chosen(entry)]
        taken += [self.others.pop(key) for key in [key for key, entry in self.others.items() if chosen(entry)]]
        return sorted(taken, key=issued_at)

    def begin_batch(self, now: int) -> None:
        """Begins a batch: what is launched from here on is waited for together."""
        self._batch_began = now

    def add_to_batch(self, entry: Entry) -> bool:
        """Adds the collective of a call that gave no work to the batch that is being made: it is over with the batch.
        Returns False where no batch is being made."""
        if self._batch_began is not None:
            self.dropped.append(entry)
        return self._batch_began is not None

    def end_batch(self, key: int | None) -> list[Entry]:
        """The work with the id() `key` stands for the batch. None: there is nothing to wait for, and the collectives
        returned are over."""
        if self._batch_began is None:
            return []
        batch, self._batch_began = self.take(self._batch_began), None
        if key is None:
            return batch
        if batch:
            self.batches[key] = batch
        return []

    def expire(self, step: int) -> None:
        """Gives up the collectives launched so many steps before `step`, which ends now, those beyond the limit, and
        those whose work another one has replaced."""
        self.demote_newest()
        excess = len(self.others) - _OTHERS_LIMIT
        stale = []
        for place, (key, entry) in enumerate(self.others.items()):  # in the order of their launches
            if place >= excess and step_of(entry) > step - self._late_steps:
                break
            stale.append(key)
        expired = [self.others.pop(key) for key in stale] + self.dropped
        self.dropped = []
        for key in [key for key, batch in self.batches.items() if step_of(batch[-1]) <= step - self._late_steps]:
            expired += self.batches.pop(key)
        if expired:
            self._never_ended(expired)


Wait = tuple[int, int]
"""The times at which a wait began and ended, in nanoseconds of one clock."""


def longest_waits(waits: Sequence[Wait], count: int) -> list[Wait]:
    """The `count` longest of `waits`, in order: who waits twice for one collective waits only once for long."""
    kept = sorted(range(len(waits)), key=lambda place: waits[place][0] - waits[place][1])[:count]
    return [waits[place] for place in sorted(kept)]


def with_waits(launches: Sequence[Launch], waits: Sequence[Wait]) -> list[tuple[Launch, Wait | None]]:
    """Collectives that C++ made, with the waits for them: in one order, so far as there are waits. A collective is
    known to be launched when its wait begins."""
    chosen = longest_waits(waits, len(launches))
    paired: list[tuple[Launch, Wait | None]] = []
    for place, (word, log, issued, size, step) in enumerate(launches):
        wait = chosen[place] if place < len(chosen) else None
        paired.append(((word, log, wait[0] if wait else issued, size, step), wait))
    return paired
