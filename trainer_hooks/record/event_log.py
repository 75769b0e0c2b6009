"""The list that the training thread appends events to. Here a hook, or a device's timeline, logs events with times of
its own.

The list stays bounded: a background thread drains it several times a second; where there is none, or where it falls
behind, the training thread drains.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from laggard.rankfile.layout import LIVE_WORDS
from laggard.trainer_hooks.record.aggregator import Aggregator
from laggard.trainer_hooks.record.events import (
    EVENT_NUMBERS,
    PHASE_ENTERED,
    PHASE_LEFT,
    STEP_ABANDONED,
    STEP_ENDED,
    WAIT_COUNTED_APART,
    WAITED,
    Append,
    Launch,
    PendingWork,
    Sink,
)


class HotPathState:
    """The state of one recorder that the hook of a collective needs: a method call would cost a tenth of what the whole
    hook may. Everybody may read these; who may change them stands with each.

    `words`: the live words of the rank file. The hooks of collectives store the one in flight there, the recorder the
    phase; the recorder replaces the memory as a whole.
    `pending`: the collectives that nobody has waited for yet; the hooks of collectives add and remove them.
    `device`: what times collectives on a device, once the process computes on one: None, or a DeviceCollectives of
    device/collectives.py, which stands above this folder. Set by the recorder.
    `step`: the step that the training thread is in; the aggregator's own may lie behind it. Set by the recorder.
    """

    __slots__ = ("device", "pending", "step", "words")

    def __init__(self, words: memoryview, pending: PendingWork[Launch]) -> None:
        self.words = words
        self.pending = pending
        self.device: Any = None
        self.step = 0


def unread_words() -> memoryview:
    """Live words that nobody reads: for a recorder before it has a rank file, and after."""
    return memoryview(array("q", [0] * LIVE_WORDS))


INTERVAL_SECONDS: Final = 0.1
_INTERVAL_NS: Final = int(INTERVAL_SECONDS * 1e9)
_STOP_SECONDS: Final = 0.5


def uneven() -> float:
    """Returns a number between 0.5 and 1.5, another one each time. Python's `random` is the training's: what draws from
    it, ranks that were seeded alike no longer draw alike."""
    return 0.5 + time.perf_counter_ns() % 1009 / 1009


class PeriodicThread:
    """Calls `act` at once when started, and from then on every INTERVAL_SECONDS. `act` must not raise anything."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._stopping = threading.Event()  # its own: a thread that stop() no longer waited for still ends
        thread = threading.Thread(target=self._run, args=(self._stopping,), name="laggard", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> bool:
        """Calls `act` a last time, on the thread, and ends the thread. Returns within _STOP_SECONDS, and False where
        the thread is stuck."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._stopping.set()
        thread.join(_STOP_SECONDS)
        return not thread.is_alive()

    def pause_around_forks(self) -> None:
        """Has the thread stopped before each fork and started again in the parent: a child then has no thread that
        vanished in the middle of something, and Python does not warn of it."""
        paused: list[bool] = []

        def before() -> None:
            paused.append(self._thread is not None)
            self.stop()

        def after() -> None:
            if paused.pop():
                with contextlib.suppress(RuntimeError):  # no thread to be had: who relies on it does the work itself
                    self.start()

        os.register_at_fork(before=before, after_in_parent=after)

    def _run(self, stopping: threading.Event) -> None:
        self._act()
        asked = time.perf_counter_ns()
        while not stopping.wait(self._interval_seconds()):
            self._woke(time.perf_counter_ns() - asked - _INTERVAL_NS)
            self._act()
            asked = time.perf_counter_ns()
        self._act_last()

    def _interval_seconds(self) -> float:
        """The time until the next call."""
        return INTERVAL_SECONDS

    def _woke(self, late_ns: int) -> None:
        """The thread woke so much later than it had asked for."""

    def _act_last(self) -> None:
        self._act()


_DRAIN_NUMBERS: Final = 256 * EVENT_NUMBERS  # at this length the training thread drains where no other thread does,
_HELP_DRAIN_NUMBERS: Final = 16384 * EVENT_NUMBERS  # at this one also where the other thread is behind,
_MAX_NUMBERS: Final = 16 * _HELP_DRAIN_NUMBERS  # and at this one events are lost where nobody can drain


class EventLog(Aggregator):
    """The events of one rank. `append` takes the five numbers of one event; while there is a background thread it is
    the list's own extend()."""

    def __init__(self, live: HotPathState, sinks: Sequence[Sink]) -> None:
        super().__init__(sinks)
        self._live = live
        self.background: PeriodicThread | None = None
        self.append: Append = self._append_and_drain

    def __len__(self) -> int:
        return len(self._events) // EVENT_NUMBERS

    def set_background(self, thread: PeriodicThread | None) -> None:
        """Has `thread` drain the list from here on; None: no thread does."""
        self.background = thread
        self.append = self._events.extend if thread is not None else self._append_and_drain

    def drain_if_needed(self) -> None:
        """Drains the list where no other thread does, or where the other is behind. For the training thread."""
        if self.background is not None and len(self._events) < _HELP_DRAIN_NUMBERS:
            return
        if not self.drain(0) and len(self._events) >= _MAX_NUMBERS:  # another thread is stuck in a sink
            self.totals.lost += len(self)
            self._events.clear()
            self.step_abandoned(self._live.step)

    def clear(self) -> None:
        """Forgets the events that have not been drained."""
        self._events.clear()

    def _append_and_drain(self, numbers: Iterable[int]) -> None:
        self._events.extend(numbers)
        if len(self._events) >= _DRAIN_NUMBERS:
            self.drain_if_needed()

    def phase_entered(self, now: int, phase: int, work: int) -> None:
        """`phase` began at `now`. `work`: as Recorder.enter."""
        self.append((PHASE_ENTERED, now, phase, work, 0))

    def phase_left(self, now: int) -> None:
        """The phase that began last ended at `now`."""
        self.append((PHASE_LEFT, now, 0, 0, 0))

    def step_ended(self, next_step: int, correction: int = 0) -> None:
        """The step ended with its last phase. `correction`: what is added to the times of all later events."""
        self.append((STEP_ENDED, next_step, correction, 0, 0))

    def step_abandoned(self, next_step: int, began: int = 0) -> None:
        """Too much of the step under way is unknown; `next_step` begins at `began`, or (0) with its first phase."""
        self.append((STEP_ABANDONED, next_step, began, 0, 0))

    def waited(self, nanoseconds: int) -> None:
        """The present segment waited so long for collectives whose own records do not count it."""
        self.append((WAITED, nanoseconds, 0, 0, 0))

    def never_ended(self, launch: Launch, arrival: int = 0) -> None:
        """A collective that was never seen to end. `arrival` 0: when the host issued it."""
        word, _, issued, size, _ = launch
        self.append((word, arrival or issued, 0, 0, size))

    def never_passed(self, events: Sequence[int]) -> int:
        """The collectives of UNTIMED events were never seen to end. Returns how many they are."""
        rows = list(zip(*[iter(events)] * EVENT_NUMBERS, strict=True))
        self.append([number for _, word, size, issued, _ in rows for number in (word, issued, 0, 0, size)])
        return len(rows)

    def ended_on_host(self, launch: Launch, end: int, waited: int = 0) -> None:
        """A collective that the host's clock timed: it was over at `end`."""
        word, _, issued, size, _ = launch
        self.append((word, issued, end, waited, size))

    def timed_on_device(self, launch: Launch, arrival: int, end: int, waited: int) -> None:
        """A collective that the present segment waited for. Its record counts no more of that than its own length, and
        an event of its own the rest."""
        word, _, issued, size, _ = launch
        arrival = max(arrival, issued)  # the clock's error must not turn cause and effect
        end = max(end, arrival)
        if waited > end - arrival:
            self.append((WAITED, waited - (end - arrival), 0, 0, 0))
            waited = end - arrival
        self.launched[word] = issued
        self.append((word, arrival, end, waited, size))

    def wait_counted_apart(self, launch: Launch, arrival: int, end: int, waited: int, by_device: bool) -> None:
        """A collective whose wait, on the device, is logged by waited(). `by_device`: the device timed it."""
        word, _, issued, size, _ = launch
        if by_device:
            self.launched[word] = issued
        self.append((WAIT_COUNTED_APART - word, arrival, end, waited, size))
