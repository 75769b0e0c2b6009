"""What happened on the device, in the order in which it was launched: told to the account once its time is known.

The hooks put entries in, each with the marks that they left in the device's streams; poll() takes from the front those
whose last mark the device has passed, dates them and tells the recorder. Nothing ever waits for the device: an entry
that is not over stays, and with it all behind it. The row is bounded; on a device that stands still it grows no more
than that, and costs one question a poll.

A mark at a phase's boundary is passed when the host has come there and the stream has run dry of what came before,
whichever is later. So a segment between two of them holds the device's work, and the host's only where the device had
to wait for it: input that is hidden behind computation counts nothing, as it should.

Three ways to wait for a collective, by where its marks stand (the *main* stream is that of the phases' boundaries):
- on the main stream, which stands still between the two marks around the call (or around the handle's wait());
- on another stream: nobody waits, until the main stream, or the host, waits for that stream. What of such a join falls
  into the flight of collectives is waiting, the rest is the rank's own time;
- in the call itself, as gloo does: marks around it tell how long the main stream ran dry meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from laggard.rankfile.layout import RECORDS_PER_BLOCK
from laggard.trainer_hooks.device import Device
from laggard.trainer_hooks.device_clock import OffsetBounds
from laggard.trainer_hooks.records import Totals

ENTRY_LIMIT: Final = 8192
_BESIDE_LIMIT: Final = 1024  # flights beside the main stream that a join may still have to do with
_FULL: Final = RECORDS_PER_BLOCK - 1

clock = time.perf_counter_ns


class Log(Protocol):
    """As recorder.LaneLog."""

    put: Callable[[Iterable[int]], None]


class Ledger(Protocol):
    """The account, as recorder.Recorder keeps it: all times on the host's clock, in nanoseconds."""

    waits: list[int]
    launched: dict[int, int]
    totals: Totals

    def phase_began(self, now: int, phase: int, saw_loader: bool) -> None: ...

    def phase_ended(self, now: int) -> None: ...

    def step_ended(self, next_step: int, shift: int = 0) -> None: ...

    def abandon_step(self, next_step: int) -> None: ...

    def hand_on(self) -> None: ...


Launch = tuple[Log, int, int, int]
"""One collective: where it is logged, its word, when the host launched it, its size in bytes. A plain tuple: it is
made on the hot path."""


class _Flight:
    """A collective beside the main stream: when it ran, and how much of that the main stream waited for."""

    __slots__ = ("arrival", "end", "exposed", "launch")

    def __init__(self, launch: Launch | None, arrival: int, end: int) -> None:
        self.launch = launch  # None once it is logged
        self.arrival = arrival
        self.end = end
        self.exposed = 0


class Timeline:
    """Entries not yet dated, and the device's clock. For the training thread; poll() by another at once is a no-op."""

    def __init__(self, device: Device, ledger: Ledger) -> None:
        self._device = device
        self._ledger = ledger
        self._row: deque[tuple[Any, Callable[..., None], tuple[Any, ...]]] = deque()
        self._polling = threading.Lock()
        self._passed: dict[int, int] = {}  # stream -> serial of the last mark that is known to be passed
        self._newest: Any = None  # the mark of the newest boundary
        self._reference: Any = None  # a passed mark, and when that was on the host's clock
        self._reference_at = 0
        self._bounds = OffsetBounds(clock())
        self._main: int | None = None
        self._now = 0  # the last boundary
        self._beside: deque[_Flight] = deque()
        self._skipping = False  # the row was given up: nothing is recorded until the step's end
        self._given_up: Any = None  # the mark after the last collective that was: until it is passed one is in flight
        self._collectives = 0  # in the row
        self.beside = 0  # of the row and of the flights kept: those that a join may have to do with

    @property
    def clock_width(self) -> int:
        """Nanoseconds: dated times are before the host's clock by no more than this."""
        return self._bounds.width

    def __len__(self) -> int:
        return len(self._row)

    @property
    def in_flight(self) -> bool:
        """Whether the device has yet to come past a collective."""
        return self._collectives > 0 or self._given_up is not None

    # What the hooks put in. A mark is None where none could be had without harm (a graph is being captured).

    def enter(self, mark: Any, phase: int, saw_loader: bool) -> None:
        self._newest = mark
        self._row.append((mark, self._began, (mark, phase, saw_loader)))
        if self._skipping or len(self._row) >= ENTRY_LIMIT:
            self.give_up()

    def leave(self, mark: Any) -> None:
        self._newest = mark
        self._add(mark, self._ended, (mark,))

    def end_step(self, next_step: int) -> None:
        """The step ends with the phase left last."""
        if self._skipping:
            self._skipping = False
            self._ledger.abandon_step(next_step)
        else:
            self._add(None, self._step_ended, (next_step,))

    def collective(
        self,
        launch: Launch,
        arrival: Any,
        before: Any,
        after: Any,
        beside: bool,
        others: tuple[tuple[Launch, Any], ...] = (),
    ) -> None:
        """One on the device. Its stream was ready at `arrival` and stood still from `before` to `after`. `arrival`
        None: not marked; `before` itself, where the two are one. `beside`: not on the main stream. `others`: of the
        same batch, with the marks of their arrivals; they are over when it is, and waited for with it."""
        self._collectives += 1 + len(others)
        self.beside += beside
        self._add(after, self._flown, (launch, arrival, before, after, beside, others))

    def on_host(self, launch: Launch, ended: int, waited: int, before: Any, after: Any) -> None:
        """One that blocked the host (gloo), between marks on the present stream."""
        self._add(after, self._host_waited, (launch, ended, waited, before, after))

    def joined(self, before: Any, after: Any) -> None:
        """The main stream waited for another between the two marks, or the host for the device."""
        self._add(after, self._waited_for, (before, after))

    def never_waited_for(self, launch: Launch, arrival: Any) -> None:
        """An asynchronous one whose handle nobody waited for: its end was never seen."""
        self._add(arrival, self._unseen, (launch, arrival))

    def _add(self, last: Any, replay: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._row.append((last, replay, arguments))
        if self._skipping or len(self._row) >= ENTRY_LIMIT:
            self.give_up()

    def give_up(self) -> None:
        """Too much is under way: what is in the row is lost, and so is the rest of this step."""
        ended = sum(replay == self._step_ended for _, replay, _ in self._row)
        self._ledger.totals.lost += self._collectives + ended
        marks = {id(it): it for _, _, arguments in self._row for it in _marks(arguments)}
        flown = [last for last, replay, _ in self._row if replay == self._flown]
        if flown:
            marks[id(self._given_up)] = self._given_up
            self._given_up = marks.pop(id(flown[-1]))
        self._drop(*marks.values())
        self._row.clear()
        self._log_flights()
        self._beside.clear()
        self._collectives = self.beside = 0
        self._skipping = True

    # What the device has come past.

    def poll(self) -> None:
        """Dates what is over. Never blocks; does nothing while a graph is being captured."""
        if not (self._row or self._given_up) or not self._polling.acquire(blocking=False):
            return
        try:
            if not self._device.capturing():
                self._date_what_is_passed()
        finally:
            self._polling.release()

    def _date_what_is_passed(self) -> None:
        if self._given_up is not None and self._is_passed(self._given_up):
            self._drop(self._given_up)
            self._given_up = None
        row, passed, former = self._row, self._passed, self._reference
        while row:
            last, replay, arguments = row[0]
            if last is not None and last.serial > passed.get(last.stream, 0) and not self._is_passed(last):
                break
            row.popleft()
            replay(*arguments)
        if self._reference is not former:
            self._bounds.not_after(self._now, clock())  # the last boundary says more than those before it

    def close(self) -> None:
        """Dates what is over. What is not was never seen to end, and its step has no record."""
        self.poll()
        for _, replay, arguments in self._row:
            if replay == self._flown:
                for (log, word, issued, size), *_ in (arguments, *arguments[-1]):
                    log.put((word, issued, 0, 0, size))
                    self._collectives -= 1
        self.give_up()

    def _is_passed(self, mark: Any) -> bool:
        """Asks the device; the newest boundary first, for it may answer for all before it."""
        stream, passed = mark.stream, self._passed
        newest, self._newest = self._newest, None  # asked once
        for each in (newest, mark):
            if each is not None and each.stream == stream and self._device.done(each):
                passed[stream] = each.serial
                return True
        return False

    def _date(self, mark: Any) -> int:
        """When a passed mark was passed, on the host's clock."""
        if self._reference is None:
            self._reference, self._reference_at = mark, mark.at
        return self._reference_at + self._device.nanoseconds_between(self._reference, mark)

    def _drop(self, *marks: Any) -> None:
        for mark in marks:
            if mark is not None and mark is not self._reference:
                self._device.release(mark)

    def _boundary(self, mark: Any) -> int:
        """When a boundary was passed; it dates what follows, for distances measured from far off are rounded."""
        if mark is None:
            return self._now or clock()
        former, device = self._reference, self._device
        put: int = mark.at
        if former is None:
            at = put
        else:
            at = self._reference_at + device.nanoseconds_between(former, mark)
            device.release(former)
        if put > at:
            self._bounds.not_before(at, put)
        self._main = mark.stream
        self._reference, self._reference_at = mark, at
        if at < self._now:
            return self._now
        self._now = at
        return at

    # Each entry as it is told to the account.

    def _began(self, mark: Any, phase: int, saw_loader: bool) -> None:
        self._ledger.phase_began(self._boundary(mark), phase, saw_loader)

    def _ended(self, mark: Any) -> None:
        self._ledger.phase_ended(self._boundary(mark))

    def _step_ended(self, next_step: int) -> None:
        self._log_flights()
        while self._beside and self._beside[0].end <= self._now:
            self._beside.popleft()
            self.beside -= 1
        shift = self._bounds.take_shift()
        self._reference_at += shift
        self._now += shift
        for flight in self._beside:
            flight.arrival += shift
            flight.end += shift
        self._ledger.step_ended(next_step, shift)

    def _flown(
        self,
        launch: Launch,
        arrival: Any,
        before: Any,
        after: Any,
        beside: bool,
        others: tuple[tuple[Launch, Any], ...],
    ) -> None:
        self._collectives -= 1 + len(others)
        began, end = self._date(before), self._date(after)
        for other, mark in others:
            self._log(other, self._date(mark) if mark is not None else self._now, end, 0)
            self._drop(mark)
        if arrival is before:
            ready = began
        elif arrival is not None:
            ready = min(began, self._date(arrival))
            self._drop(arrival)
        else:
            ready = self._now  # at the earliest
        self._drop(before)
        if after is not before:
            self._drop(after)
        if beside:
            self._keep_flight(_Flight(launch, ready, end))
        else:
            waited = max(0, end - began)
            self._ledger.waits.append(waited)
            self._log(launch, ready, end, waited)

    def _host_waited(self, launch: Launch, ended: int, waited: int, before: Any, after: Any) -> None:
        if before is not None and after is not None and before.stream == self._main:
            self._ledger.waits.append(max(0, self._date(after) - self._date(before)))
        self._drop(before, after)
        log, word, issued, size = launch
        log.put((word, issued, ended, waited, size))

    def _waited_for(self, before: Any, after: Any) -> None:
        began, ended = self._date(before), self._date(after)
        self._drop(before, after)
        covered = began  # until where the join is accounted for
        for flight in sorted(self._beside, key=lambda each: each.arrival):
            start, end = max(flight.arrival, began), min(flight.end, ended)
            if end > start:
                flight.exposed += end - start
            if end > max(start, covered):
                self._ledger.waits.append(end - max(start, covered))
                covered = end

    def _unseen(self, launch: Launch, arrival: Any) -> None:
        log, word, issued, size = launch
        ready = issued if arrival is None else max(issued, self._date(arrival))
        self._drop(arrival)
        log.put((word, ready, 0, 0, size))

    def _keep_flight(self, flight: _Flight) -> None:
        self._beside.append(flight)
        if len(self._beside) > _BESIDE_LIMIT:
            self._log_flight(self._beside.popleft())
            self.beside -= 1

    def _log_flights(self) -> None:
        for flight in self._beside:
            self._log_flight(flight)

    def _log_flight(self, flight: _Flight) -> None:
        launch, flight.launch = flight.launch, None
        if launch is not None:
            self._log(launch, flight.arrival, flight.end, flight.exposed)

    def _log(self, launch: Launch, arrival: int, end: int, waited: int) -> None:
        log, word, issued, size = launch
        if arrival < issued:
            arrival = issued  # the clock's error must not turn cause and effect
        log.put((word, arrival, max(end, arrival), waited, size))
        self._ledger.launched[word] = issued
        if not word & _FULL:
            self._ledger.hand_on()


def _marks(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """All marks among an entry's arguments."""
    for each in arguments:
        if isinstance(each, tuple):
            yield from _marks(each)
        elif hasattr(each, "serial"):
            yield each
