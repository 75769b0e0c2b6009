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
from collections.abc import Callable, Iterator
from typing import Any, Final

from laggard.trainer_hooks.device.api import Device
from laggard.trainer_hooks.device.overlap import Flight, Flights
from laggard.trainer_hooks.device.timestamps import Dates
from laggard.trainer_hooks.record.event_log import EventLog
from laggard.trainer_hooks.record.events import Launch, issued_at

ENTRY_LIMIT: Final = 8192

clock = time.perf_counter_ns


class Timeline:
    """Entries not yet dated, and the device's clock. For the training thread; poll() by another at once is a no-op."""

    def __init__(self, device: Device, events: EventLog) -> None:
        self._device = device
        self._events = events
        self._row: deque[tuple[Any, Callable[..., None], tuple[Any, ...]]] = deque()
        self._polling = threading.Lock()
        self._passed: dict[int, int] = {}  # stream -> serial of the last mark that is known to be passed
        self._newest: Any = None  # the mark of the newest boundary
        self._dates = Dates(device)
        self._flights = Flights(self._log, events.waited)
        self._skipping = False  # the row was given up: nothing is recorded until the step's end
        self._given_up: Any = None  # the mark after the last collective that was: until it is passed one is in flight
        self._collectives = 0  # in the row
        self._beside = 0  # of them, those on other streams than the main one
        self.left: Any = None  # the mark of the phase left last, while nothing has been put in since

    @property
    def clock_width(self) -> int:
        """Nanoseconds: dated times are before the host's clock by no more than this."""
        return self._dates.width

    def __len__(self) -> int:
        return len(self._row)

    @property
    def in_flight(self) -> bool:
        """Whether the device has yet to come past a collective."""
        return self._collectives > 0 or self._given_up is not None

    @property
    def beside(self) -> int:
        """How many there are that a join may have to do with."""
        return self._beside + len(self._flights)

    # What the hooks put in. A mark is None where none could be had without harm (a graph is being captured).

    def enter(self, mark: Any, phase: int, saw_loader: bool) -> None:
        """`mark` may be `left`: the phase begins where the last one ended."""
        self._newest, row = mark, self._row
        if mark is not None and mark is self.left and row and row[-1][0] is mark:
            self.left = None
            row[-1] = (mark, self._turned, (mark, phase, saw_loader))
        else:
            self._add(mark, self._began, (mark, phase, saw_loader))

    def leave(self, mark: Any) -> None:
        self._newest = mark
        self._add(mark, self._ended, (mark,))
        self.left = None if self._skipping else mark

    def end_step(self, next_step: int) -> None:
        """The step ends with the phase left last."""
        if self._skipping:
            self._skipping = False
            self._events.step_abandoned(next_step)
        else:
            left = self.left
            self._add(None, self._step_ended, (next_step,))
            self.left = None if self._skipping else left

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
        self._beside += beside
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
        self.left = None
        self._row.append((last, replay, arguments))
        if self._skipping or len(self._row) >= ENTRY_LIMIT:
            self.give_up()

    def give_up(self) -> None:
        """Too much is under way: what is in the row is lost, and so is the rest of this step."""
        ended = sum(replay == self._step_ended for _, replay, _ in self._row)
        self._events.totals.lost += self._collectives + ended
        marks = {id(it): it for _, _, arguments in self._row for it in _marks(arguments)}
        flown = [last for last, replay, _ in self._row if replay == self._flown]
        if flown:
            marks[id(self._given_up)] = self._given_up
            self._given_up = marks.pop(id(flown[-1]))
        self._dates.drop(*marks.values())
        self._row.clear()
        self._flights.log_all()
        self._flights.clear()
        self._collectives = self._beside = 0
        self.left = None
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
            self._dates.drop(self._given_up)
            self._given_up = None
        row, passed, dates = self._row, self._passed, self._dates
        former = dates.reference
        while row:
            last, replay, arguments = row[0]
            if last is not None and last.serial > passed.get(last.stream, 0) and not self._is_passed(last):
                break
            row.popleft()
            replay(*arguments)
        if dates.reference is not former:
            dates.seen(clock())  # the last boundary says more than those before it

    def close(self) -> None:
        """Dates what is over. What is not was never seen to end, and its step has no record."""
        self.poll()
        for _, replay, arguments in self._row:
            if replay == self._flown:
                for launch, *_ in (arguments, *arguments[-1]):
                    self._events.never_ended(launch)
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

    # Each entry as it is told to the account.

    def _began(self, mark: Any, phase: int, saw_loader: bool) -> None:
        self._events.phase_entered(self._dates.boundary(mark), phase, saw_loader)

    def _turned(self, mark: Any, phase: int, saw_loader: bool) -> None:
        """One phase ended and the next began."""
        now = self._dates.boundary(mark)
        self._events.phase_left(now)
        self._events.phase_entered(now, phase, saw_loader)

    def _ended(self, mark: Any) -> None:
        self._events.phase_left(self._dates.boundary(mark))

    def _step_ended(self, next_step: int) -> None:
        shift = self._dates.take_shift()
        if self._flights:
            self._flights.log_all()
            self._flights.forget(self._dates.now - shift)
            self._flights.shift(shift)
        self._events.step_ended(next_step, shift)

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
        dates = self._dates
        began, end = dates.date(before), dates.date(after)
        for other, mark in others:
            self._log(other, dates.now if mark is None else dates.date(mark), end, 0)
        ready = dates.now  # at the earliest
        if arrival is not None:
            ready = began if arrival is before else min(began, dates.date(arrival))
        if others:
            dates.drop(*once(arrival, before, after, *(mark for _, mark in others)))
        else:
            dates.drop(before)
            if arrival is not before:
                dates.drop(arrival)
            if after is not before:
                dates.drop(after)
        if beside:
            self._beside -= 1
            self._flights.keep(Flight(launch, ready, end))
        else:
            self._events.timed_on_device(launch, ready, end, max(0, end - began))

    def _host_waited(self, launch: Launch, ended: int, waited: int, before: Any, after: Any) -> None:
        if before is not None and after is not None and before.stream == self._dates.main:
            self._events.waited(max(0, self._dates.date(after) - self._dates.date(before)))
        self._dates.drop(before, after)
        self._events.wait_counted_apart(launch, issued_at(launch), ended, waited, by_device=False)

    def _waited_for(self, before: Any, after: Any) -> None:
        began, ended = self._dates.date(before), self._dates.date(after)
        self._dates.drop(before, after)
        self._flights.join(began, ended)

    def _unseen(self, launch: Launch, arrival: Any) -> None:
        ready = 0 if arrival is None else max(issued_at(launch), self._dates.date(arrival))
        self._dates.drop(arrival)
        self._events.never_ended(launch, ready)

    def _log(self, launch: Launch, arrival: int, end: int, waited: int) -> None:
        arrival = max(arrival, issued_at(launch))  # the clock's error must not turn cause and effect
        end = max(end, arrival)
        self._events.wait_counted_apart(launch, arrival, end, min(waited, end - arrival), by_device=True)


def once(*marks: Any) -> list[Any]:
    """Each mark once; None is none."""
    return list({id(mark): mark for mark in marks if mark is not None}.values())


def _marks(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """All marks among an entry's arguments."""
    for each in arguments:
        if isinstance(each, tuple):
            yield from _marks(each)
        elif hasattr(each, "serial"):
            yield each
