"""The timeline of what happened on the device, in the order in which it was launched: it is logged once its time is
known.

The hooks add entries, each with the marks that they left in the device's streams. poll() takes from the front the
entries whose last mark the device has passed, finds their times and logs them. Nothing ever waits for the device: an
entry that is not over stays, and with it all entries behind it. The queue is bounded: on a device that stands still it
grows no longer than that, and costs one question a poll.

A mark at a phase's boundary is passed when the host has come there and the stream has run dry of what came before,
whichever is later. So a segment between two of them holds the device's work, and the host's only where the device had
to wait for it: input that is hidden behind computation counts nothing, as it should.

There are three ways to wait for a collective, by where its marks stand (the *main* stream is that of the phases'
boundaries):
- on the main stream, which stands still between the two marks around the call (or around the handle's wait());
- on another stream: nobody waits until the main stream, or the host, waits for that stream. Of such a stream wait the
  part in which a collective ran is waiting, the rest is the rank's own time;
- in the call itself, as gloo does: marks around it give how long the main stream ran dry meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.device.clock import AsyncDevice, Timestamps
from laggard.trainer_hooks.record.event_log import EventLog
from laggard.trainer_hooks.record.events import EVENT_NUMBERS, Launch, Wait, issued_at, with_waits

_MAX_COLLECTIVES: Final = 1024  # collectives that are kept, because the main stream may still wait for them


class OverlappedCollective:
    """One collective; times on the host's clock, in nanoseconds. `exposed`: how much the main stream waited for it."""

    __slots__ = ("arrival", "end", "exposed", "launch")

    def __init__(self, launch: Launch, arrival: int, end: int) -> None:
        self.launch: Launch | None = launch  # None once it is logged
        self.arrival = arrival
        self.end = end
        self.exposed = 0


class OverlappedCollectives:
    """The last of them. `log` takes launch, arrival, end, waited; `waited` takes nanoseconds of the present segment."""

    def __init__(self, log: Callable[[Launch, int, int, int], None], waited: Callable[[int], None]) -> None:
        self._log = log
        self._waited = waited
        self._kept: deque[OverlappedCollective] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, collective: OverlappedCollective) -> None:
        self._kept.append(collective)
        if len(self._kept) > _MAX_COLLECTIVES:
            self._log_once(self._kept.popleft())

    def main_stream_waited(self, began: int, ended: int) -> None:
        """The main stream waited for other streams: as far as a collective ran meanwhile, it waited for that one."""
        covered = began  # until where the wait is accounted for
        for collective in sorted(self._kept, key=lambda each: each.arrival):
            start, end = max(collective.arrival, began), min(collective.end, ended)
            if end > start:
                collective.exposed += end - start
            if end > max(start, covered):
                self._waited(end - max(start, covered))
                covered = end

    def log_all(self) -> None:
        for collective in self._kept:
            self._log_once(collective)

    def forget_ended(self, now: int) -> None:
        """Forgets those that were over by `now`: no later wait of the main stream is for them."""
        while self._kept and self._kept[0].end <= now:
            self._kept.popleft()

    def correct(self, by: int) -> None:
        """Adds `by` to their times."""
        for collective in self._kept:
            collective.arrival += by
            collective.end += by

    def clear(self) -> None:
        self._kept.clear()

    def _log_once(self, collective: OverlappedCollective) -> None:
        launch, collective.launch = collective.launch, None
        if launch is not None:
            self._log(launch, collective.arrival, collective.end, collective.exposed)


ENTRY_LIMIT: Final = 8192

clock = time.perf_counter_ns


class Timeline:
    """The entries whose times are not known yet, and the device's clock. For the training thread; poll() by another
    thread at the same time does nothing."""

    def __init__(self, device: AsyncDevice, events: EventLog) -> None:
        self._device = device
        self._events = events
        self._queue: deque[tuple[Any, Callable[..., None], tuple[Any, ...]]] = deque()  # last mark, replay, arguments
        self._polling = threading.Lock()
        self._passed: dict[int, int] = {}  # stream -> serial of the last mark that is known to be passed
        self._newest_boundary: Any = None  # its mark
        self._timestamps = Timestamps(device)
        self._overlapped = OverlappedCollectives(self._log, events.waited)
        self._native_waits: list[Wait] = []  # those for the collectives that native_ended() adds next
        self._skipping = False  # the queue was given up: nothing is recorded until the step's end
        self._given_up: Any = None  # the mark after the last collective given up: until it is passed one is in flight
        self._collectives = 0  # in the queue
        self._on_other_streams = 0  # of them, those on other streams than the main one
        self.use_again, self.release = self._timestamps.use_again, self._timestamps.release

    @property
    def in_flight(self) -> bool:
        """Whether the device has yet to come past a collective."""
        return self._collectives > 0 or self._given_up is not None

    @property
    def overlapped(self) -> int:
        """The number of collectives that a stream wait may be for."""
        return self._on_other_streams + len(self._overlapped)

    # What the hooks add. A mark is None where none could be had without harm (a graph is being captured).

    def enter(self, mark: Any, phase: int, work: int) -> None:
        self._newest_boundary = mark
        self.add(mark, self._replay_enter, mark, phase, work)

    def leave(self, mark: Any) -> None:
        self._newest_boundary = mark
        self.add(mark, self._replay_leave, mark)

    def end_step(self, next_step: int) -> None:
        """The step ends with the phase left last."""
        if self._skipping:
            self._skipping = False
            self._events.step_abandoned(next_step)
        else:
            self.add(None, self._replay_end_step, next_step)

    def end_untimed_step(self, mark: Any, events: list[int], next_step: int, is_timed: bool) -> None:
        """A step ends at `mark`, within which there are no marks. `events`: its collectives, over by then. `is_timed`:
        the next step has marks, so that it begins at this one."""
        collectives = len(events) // EVENT_NUMBERS
        if self._skipping:
            self._events.totals.lost += collectives
            self.release(mark)
            return self.end_step(next_step)
        self._newest_boundary = mark
        self._collectives += collectives
        self.add(mark, self._replay_end_untimed_step, mark, events, next_step, is_timed)

    def collective(
        self,
        launch: Launch,
        arrival: Any,
        before: Any,
        after: Any,
        on_other_stream: bool,
        others: tuple[tuple[Launch, Any], ...] = (),
    ) -> None:
        """Adds a collective on the device. Its stream was ready at `arrival` and stood still from `before` to `after`.
        `arrival` None: not marked; `before` itself, where the two are one. `on_other_stream`: not on the main one.
        `others`: the rest of its batch, with the marks of their arrivals; they are over when it is, and waited for with
        it."""
        self._collectives += 1 + len(others)
        self._on_other_streams += on_other_stream
        self.add(after, self._replay_collective, launch, arrival, before, after, on_other_stream, others)

    def add(self, last: Any, replay: Callable[..., None], *arguments: Any) -> None:
        """Adds an entry, which replay(*arguments) logs once the mark `last` is passed: one of the replays below."""
        self._queue.append((last, replay, arguments))
        if self._skipping or len(self._queue) >= ENTRY_LIMIT:
            self.give_up()

    def give_up(self) -> None:
        """Too much is under way: what is in the queue is lost, and so is the rest of this step."""
        ended = sum(replay == self._replay_end_step for _, replay, _ in self._queue)
        self._events.totals.lost += self._collectives + ended
        with_collectives = (self._replay_collective, self._replay_end_untimed_step)
        after_collectives = [last for last, replay, _ in self._queue if replay in with_collectives and last is not None]
        if after_collectives:
            self.release(self._given_up)
            self._given_up = after_collectives[-1]
            self.use_again(self._given_up)
        for _, _, arguments in self._queue:
            self.release(*_marks(arguments))
        self._queue.clear()
        self._overlapped.log_all()
        self._overlapped.clear()
        self._native_waits.clear()
        self._collectives = self._on_other_streams = 0
        self._newest_boundary = None
        self._skipping = True

    # What the device has come past.

    def poll(self) -> None:
        """Logs what is over. Never blocks; does nothing while a graph is being captured."""
        if not (self._queue or self._given_up) or not self._polling.acquire(blocking=False):
            return
        try:
            if not self._device.capturing():
                self._replay_passed()
        finally:
            self._polling.release()

    def _replay_passed(self) -> None:
        if self._given_up is not None and self._is_passed(self._given_up):
            self._timestamps.release(self._given_up)
            self._given_up = None
        queue, passed, timestamps = self._queue, self._passed, self._timestamps
        former = timestamps.reference
        while queue:
            last, replay, arguments = queue[0]
            if last is not None and last.serial > passed.get(last.stream, 0) and not self._is_passed(last):
                break
            queue.popleft()
            replay(*arguments)
        if timestamps.reference is not former:
            timestamps.boundary_observed(clock())  # the last boundary bounds the clock closer than those before it

    def close(self) -> None:
        """Logs what is over. What is not was never seen to end, and its step has no record."""
        self.poll()
        for _, replay, arguments in self._queue:
            if replay == self._replay_collective:
                for launch, *_ in (arguments, *arguments[-1]):
                    self._events.never_ended(launch)
                    self._collectives -= 1
            elif replay == self._replay_end_untimed_step:
                self._collectives -= self._events.never_passed(arguments[1])
        self.give_up()

    def _is_passed(self, mark: Any) -> bool:
        """Asks the device; about the newest boundary first, for it may answer for all before it."""
        stream, passed = mark.stream, self._passed
        newest, self._newest_boundary = self._newest_boundary, None  # asked once
        for each in (newest, mark):
            if each is not None and each.stream == stream and self._device.done(each):
                passed[stream] = each.serial
                return True
        return False

    # Each entry as it is logged.

    def _replay_enter(self, mark: Any, phase: int, work: int) -> None:
        self._events.phase_entered(self._timestamps.of_boundary(mark), phase, work)

    def _replay_leave(self, mark: Any) -> None:
        self._events.phase_left(self._timestamps.of_boundary(mark))

    def _replay_end_step(self, next_step: int) -> None:
        self._events.step_ended(next_step, self._correct())

    def _correct(self) -> int:
        """Takes the correction of the times after a step, and returns it."""
        correction = self._timestamps.take_correction()
        if self._overlapped:
            self._overlapped.log_all()
            self._overlapped.forget_ended(self._timestamps.now - correction)
            self._overlapped.correct(correction)
        return correction

    def _replay_end_untimed_step(self, mark: Any, events: list[int], next_step: int, is_timed: bool) -> None:
        self._events.append(events)
        self._collectives -= len(events) // EVENT_NUMBERS
        if not is_timed:  # what the clocks show now, nobody will ask
            return self.release(mark)
        self._timestamps.of_boundary(mark)
        self._correct()
        self._events.step_abandoned(next_step, 0 if mark is None else self._timestamps.now)

    def _replay_collective(
        self,
        launch: Launch,
        arrival: Any,
        before: Any,
        after: Any,
        on_other_stream: bool,
        others: tuple[tuple[Launch, Any], ...],
    ) -> None:
        self._collectives -= 1 + len(others)
        timestamps = self._timestamps
        began, end = timestamps.of(before), timestamps.of(after)
        for other, mark in others:
            self._log(other, timestamps.now if mark is None else timestamps.of(mark), end, 0)
        ready = timestamps.now  # at the earliest
        if arrival is not None:
            ready = began if arrival is before else min(began, timestamps.of(arrival))
        self.release(before, None if after is before else after, None if arrival in (before, after) else arrival)
        if others:
            self.release(*(mark for _, mark in others))
        if on_other_stream:
            self._on_other_streams -= 1
            self._overlapped.add(OverlappedCollective(launch, ready, end))
        else:
            self._events.timed_on_device(launch, ready, end, max(0, end - began))

    def on_host(self, launch: Launch, ended: int, waited: int, before: Any, after: Any) -> None:
        """A collective that blocked the host (gloo), between marks on the present stream."""
        if before is not None and after is not None and before.stream == self._timestamps.main:
            self._events.waited(max(0, self._timestamps.of(after) - self._timestamps.of(before)))
        self._timestamps.release(before, after)
        self._events.wait_counted_apart(launch, issued_at(launch), ended, waited, by_device=False)

    def stream_wait(self, before: Any, after: Any) -> None:
        """The main stream waited for another between the two marks, or the host for the device."""
        began, ended = self._timestamps.of(before), self._timestamps.of(after)
        self._timestamps.release(before, after)
        self._overlapped.main_stream_waited(began, ended)

    def native_wait(self, before: Any, after: Any) -> None:
        """The present stream waited between the two marks for a collective that C++ made, which native_ended() logs."""
        began, ended = self._timestamps.of(before), self._timestamps.of(after)
        if before.stream == self._timestamps.main:
            self._events.waited(max(0, ended - began))
            self._native_waits.append((began, max(began, ended)))
        self._timestamps.release(before, after)

    def native_ended(self, launches: tuple[Launch, ...], ended: int) -> None:
        """Collectives that C++ made since the last time. For the host they were over at `ended`."""
        waits, self._native_waits = self._native_waits, []
        for launch, wait in with_waits(launches, waits):
            if wait is None:
                self._events.wait_counted_apart(launch, issued_at(launch), ended, 0, by_device=False)
            else:
                self._log(launch, wait[0], wait[1], wait[1] - wait[0])

    def never_ended(self, launch: Launch, arrival: Any) -> None:
        """An asynchronous collective that nobody waited for: it was never seen to end."""
        ready = 0 if arrival is None else max(issued_at(launch), self._timestamps.of(arrival))
        self._timestamps.release(arrival)
        self._events.never_ended(launch, ready)

    def _log(self, launch: Launch, arrival: int, end: int, waited: int) -> None:
        arrival = max(arrival, issued_at(launch))  # the clock's error must not turn cause and effect
        end = max(end, arrival)
        self._events.wait_counted_apart(launch, arrival, end, min(waited, end - arrival), by_device=True)


def _marks(arguments: tuple[Any, ...]) -> list[Any]:
    """The marks that an entry holds, as often as it holds them: one may be both before and after."""
    own = {id(each): each for each in arguments if hasattr(each, "serial")}
    others = arguments[-1] if isinstance(arguments[-1], tuple) else ()
    return [*own.values(), *(mark for _, mark in others)]
