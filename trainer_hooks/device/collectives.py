"""The hooks' hot path where the process computes on a device: marks around each call, whose times the timeline finds.

A collective on a device returns at its launch, long before the device has come to it. So the host's clock (when
it was launched, how long the call took) does not show who was late: the marks do.

The live word of the collective in flight is the host's: it shows the last one launched until the training thread has
seen all of them end, at the next phase's boundary. It may so show one that ended since; never one out of the rank's
order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import get_ident
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import WORD_CURRENT, WORD_ISSUED
from laggard.trainer_hooks.device.clock import AsyncDevice
from laggard.trainer_hooks.device.gpu import Placement
from laggard.trainer_hooks.device.phases import DevicePhases
from laggard.trainer_hooks.record.events import EVENT_NUMBERS, UNTIMED, LaneLog, Launch, PendingWork, untimed
from laggard.trainer_hooks.record.recorder import Recorder

log = logging.getLogger("laggard")

clock = time.perf_counter_ns

_POLL_MASK: Final = 63  # of the number of collectives: polled every 64, because phases can be long
_RECENT_COLLECTIVES: Final = 1024  # collectives


class _PendingCollective(NamedTuple):
    """A collective that nobody has waited for yet. It begins as a Launch does."""

    word: int
    log: LaneLog
    issued: int
    size: int
    step: int
    arrival: Any  # its mark; None where none was left
    on_device: bool  # or the host's own (gloo)
    is_async: bool  # False: its caller waits for it at once, and that wait is part of the call whenever it comes:
    # newer torch runs it on the caller's stream, which a mark between the two would measure

    @property
    def launch(self) -> Launch:
        return self[:5]


_new: Final = tuple.__new__  # what the class calls itself: one call less


class DeviceCollectives(DevicePhases):
    """Times a recorder's phases, steps and collectives by marks in a device's streams, and logs them once the device
    has come past the marks. Nothing here waits for the device. A mark is None where none could be had.

    `mark_launches` False: no mark is left at the launch of an asynchronous collective. With one hardware queue for all
    streams (CUDA_DEVICE_MAX_CONNECTIONS=1) what stands before a kernel in the queue can hold it up. `placement`: where
    the process trains, which may turn out to be another device than `device`.
    """

    def __init__(
        self,
        device: AsyncDevice,
        recorder: Recorder,
        mark_launches: bool = True,
        placement: Placement | None = None,
    ) -> None:
        super().__init__(device, recorder)
        self._placement = placement or Placement()
        self._elsewhere: int | None = None  # the device of this step's last collective that was on another one
        self.carries = device.carries
        self.captured = 0  # collectives that went into graphs, and are not recorded
        self.pending: PendingWork[_PendingCollective] = PendingWork(self._never_ended)
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=_RECENT_COLLECTIVES)  # word, launch on the host, bytes
        self._mark_launches = mark_launches
        self._last = (0, 0)  # word and launch of the last collective that went to the device
        self._calls = self._calls_before = 0  # by now, and before this step
        self.at_once = 0  # the id() of the work launched last, where a wait for it leaves no marks

    def call(
        self,
        original: Callable[..., Any],
        group: Any,
        args: Sequence[Any],
        named: dict[str, Any],
        launch: tuple[int, LaneLog, int],
        sized: Any,
        size_of: Callable[[Any], int],
    ) -> Any:
        """Returns original(group, ...), called once, between marks, in a step that has some and on the training thread.
        `launch`: word, lane log, issued. `sized`: the argument that has the operation's size; None where the operation
        moves no data."""
        is_async = _is_async(named.get("opts") if named else args[-1] if args else None)
        arrival = self.mark(launch[2]) if self._mark_launches or not is_async else None
        if arrival is None and (self._mark_launches or not is_async or not self.may_mark()):
            self._skip_collective()
            return original(group, *args, **named)
        if not is_async:  # else it runs in a stream of its own
            self._newest = None
        try:
            work = original(group, *args, **named)
        except BaseException:
            self.release(arrival)
            self._restore_live_words()
            raise
        try:
            on_device = self._device.carries(sized, group)
            elsewhere = None if on_device else self._device.other_index(sized)
            size = size_of(sized)
        except Exception:  # arguments that are no tensors as we know them
            self._recorder.totals.errors += 1
            self.release(arrival)
            self._restore_live_words()
            return work
        if elsewhere is not None:
            self.release(arrival)
            self._recorder.totals.lost += 1  # the streams of another device are not marked
            self._elsewhere = elsewhere
            self._restore_live_words()
            return work
        if is_async and not on_device and work is not None:
            self.release(arrival)
            arrival = None
        try:
            entry = _new(_PendingCollective, (*launch, size, self._live.step, arrival, on_device, is_async))
            self.recent.append((entry.word, entry.issued, size))
            self._launched(work, entry)
        except Exception as error:
            self._disable(error)
        self._left_at = clock()  # last: on a slow host what the hooks do takes as long as a launch
        return work

    def launched_untimed(self, work: Any, known: Launch, options: Any) -> None:
        """`known` was launched, with these options, in a step without marks, or on another thread than the training's.
        There it has the host's times, and no part of the step waits for it. One that its caller does not wait for at
        once may be waited for in a step that has marks. Any other is shown by the live words until the step is over."""
        word, _, issued, size, _ = known
        self.at_once = 0
        self.recent.append((word, issued, size))
        if not self.on_training_thread():
            self._recorder.events.wait_counted_apart(known, issued, clock(), 0, by_device=False)
            self._restore_live_words()
        elif work is None or _is_async(options):
            self._launched(work, _new(_PendingCollective, (*known, None, True, True)))
        else:
            self._untimed += (UNTIMED, word, size, issued, 0)
            self._last = word, issued
            self._live.words[WORD_ISSUED] = issued
            self.at_once = id(work)

    def _pass_untimed(self, batch: Sequence[_PendingCollective]) -> None:
        """Nothing more will be known of these than that they are over with the step."""
        for word, _, issued, size, _, arrival, *_ in batch:
            if arrival is not None:
                self.release(arrival)
            self._untimed += (UNTIMED, word, size, issued, 0)
        self._last = batch[-1].word, batch[-1].issued
        self._restore_live_words()

    def _launched(self, work: Any, entry: _PendingCollective) -> None:
        if work is None:
            if not self.pending.add_to_batch(entry):
                self._waited([entry], entry.issued, entry.arrival)
            return
        former = self._live.pending
        if former.key or former.others:  # launched before there was a device, and dropped
            former.demote_newest(work)
        self.pending.add(work, entry)
        if entry.is_async:  # else its caller is about to wait for it
            self._restore_live_words()

    def end_batch(self, key: int | None) -> None:
        """Does as PendingWork.end_batch; logs what is over."""
        over = self.pending.end_batch(key)
        if over:
            self._waited(over, over[-1].issued, over[-1].arrival)
        else:
            self._restore_live_words()

    def wait(self, work: object, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(work, ...), the caller's own wait, called once, between marks."""
        began = clock()
        batch = self.pending.awaited(work)
        if not batch:  # waited for a second time, expired, or not a collective's
            return original(work, *args)
        if get_ident() != self._home and not self._device.runs_backward():
            return self._wait_on_other_thread(batch, work, original, *args)
        if not self.timed:
            self._pass_untimed(batch)
            return original(work, *args)
        last = batch[-1]
        before = last.arrival
        if before is None or last.is_async:
            before = self.mark(began)
            if before is last.arrival:  # it has that already
                self.release(before)
        if before is None:
            self.release(*_marks(batch, before))
            self._skip_collective()
            return original(work, *args)
        words = self._live.words
        words[WORD_ISSUED] = 0
        words[WORD_CURRENT] = last.word
        words[WORD_ISSUED] = began
        self._newest = None
        try:
            result = original(work, *args)
        except BaseException:
            self.release(*_marks(batch, before))
            self._restore_live_words()
            raise
        try:
            self._waited(batch, began, before)
        except Exception as error:
            self._disable(error)
        self._left_at = clock()
        return result

    def synchronize(self, work: object, original: Callable[..., Any]) -> Any:
        """Returns original(work), Work.synchronize(): the present stream waits for a collective on the device. For one
        of the host's it may do nothing."""
        entry = self.pending.get(work)
        return self.wait(work, original) if entry is not None and entry.on_device else original(work)

    def _wait_on_other_thread(
        self, batch: Sequence[_PendingCollective], work: object, original: Callable[..., Any], *args: Any
    ) -> Any:
        """Does as wait(), on a thread that is not the training's."""
        self.release(*_marks(batch, None))
        try:
            return original(work, *args)
        finally:
            now = clock()
            for entry in batch:
                self._recorder.events.wait_counted_apart(entry.launch, entry.issued, now, 0, by_device=False)

    def _waited(self, batch: Sequence[_PendingCollective], began: int, before: Any) -> None:
        """The host, or the present stream, has waited for these collectives since `before`."""
        if not self.timed:
            return self._pass_untimed(batch)
        ended, after, last = clock(), self.mark(), batch[-1]
        if after is None:
            self._recorder.totals.lost += len(batch)
            self.release(*_marks(batch, before))
        elif last.on_device:
            self._last = last.word, began
            first = before or after
            others = tuple((each.launch, each.arrival) for each in batch[:-1]) if len(batch) > 1 else ()
            self.timeline.collective(last.launch, last.arrival, first, after, self._on_other_stream(first), others)
        else:
            self.release(*(mark for mark in _marks(batch, None) if mark is not before))
            for entry in batch[:-1]:
                self._recorder.events.ended_on_host(entry.launch, ended)
            self.timeline.add(after, self.timeline.on_host, last.launch, ended, ended - began, before, after)
            self._restore_live_words()
        self._calls += 1
        if not self._calls & _POLL_MASK:
            self.poll()

    def log_native(self, launches: Sequence[Launch], before: Any, after: Any, waits: bool = True) -> None:
        """Logs collectives that C++ made and waited for: their stream was ready for them at `before`, and stood still
        until `after`; for them where `waits`. The marks are the caller's no more."""
        if not launches or before is None or after is None:
            self.release(before, after)
            return self.log_ended(launches, clock())
        self._remember(launches)
        *others, last = launches
        first, on_other_stream = before if waits else after, self._on_other_stream(after)
        for _ in others:
            self.timeline.use_again(before)
        rest = tuple((each, before) for each in others)
        self.timeline.collective(last, before, first, after, on_other_stream, rest)

    def log_ended(self, launches: Sequence[Launch], ended: int) -> None:
        """Logs collectives of which nothing is known but that they are over, for the host, at `ended`."""
        self._remember(launches)
        if not self.timed:
            self._untimed += untimed(launches)
            return
        self.timeline.add(None, self.timeline.native_ended, tuple(launches), ended)

    def time_native_wait(self, original: Callable[..., Any], *args: Any) -> Any:
        """Returns original(...), called once, between marks: the present stream waits for a collective that C++ made
        and that log_ended() will log."""
        return self._between_marks(self.mark(), self.timeline.native_wait, original, *args)

    def _between_marks(
        self, before: Any, replay: Callable[..., None], original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Returns original(...), called once, between `before` and another mark: an entry of the timeline."""
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self.release(before)
            raise
        after = self.mark()
        if before is None or after is None:
            self.release(before, after)
        else:
            self.timeline.add(after, replay, before, after)
        return result

    def _remember(self, launches: Sequence[Launch]) -> None:
        self.recent.extend((word, issued, size) for word, _, issued, size, _ in launches)

    def take(self, since: int, logs: set[int], before: Any) -> tuple[list[Launch], Any]:
        """Takes as PendingWork.take does, for a caller that waits for the collectives in C++. Also returns `before`, or
        the mark of the last arrival that came after it in its stream. The other marks are needed no more."""
        entries = self.pending.take(since, logs)
        marks = _marks(entries, before)
        newest = max(
            (it for it in marks if before and it.stream == before.stream), key=attrgetter("serial"), default=None
        )
        if newest is not None:
            marks.remove(newest)
        self.release(*marks)
        return [entry.launch for entry in entries], newest

    def time_stream_wait(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns original(...), called once, between marks: the user's own wait of the present stream for another, or
        of the host for the device."""
        before = self.mark() if self.timeline.overlapped else None
        if before is None or before.stream != self.main:
            self.release(before)
            return original(*args, **kwargs)
        return self._between_marks(before, self.timeline.stream_wait, original, *args, **kwargs)

    def end_step(self, finished: int, next_step: int) -> None:
        """The step `finished` ends with the phase left last."""
        if self._enabled and self.pending:
            self.pending.expire(finished)
        placement, trained_here = self._placement, self._calls != self._calls_before or self.pending
        if self._elsewhere is not None and not trained_here:
            placement.index = self._elsewhere
        self._elsewhere, self._calls_before, self.at_once = None, self._calls, 0
        if placement.index is None or placement.index == self._device.index:
            super().end_step(finished, next_step)
        elif self._enabled:
            self._move()

    def _move(self) -> None:
        """The process trains on another device: what is under way on this one was never seen to end, and the step that
        ends has no record. A timer for the other device takes over."""
        log.info("laggard: the training runs on GPU %s and is timed there now", self._placement.index)
        self.close()
        self._enabled = False
        self._recorder.search_device_again()

    def close(self) -> None:
        """The training is over: what the device has not come to by now was never seen to end."""
        self.pending.expire(self._live.step + 1)
        self.timeline.close()

    def _disable(self, error: Exception) -> None:
        if self._enabled:
            self._recorder.totals.lost += len(self.pending) + len(self._untimed) // EVENT_NUMBERS
        super()._disable(error)

    def _on_other_stream(self, mark: Any) -> bool:
        return self.main is not None and mark.stream != self.main

    def _skip_collective(self) -> None:
        """Counts a collective that gets no marks: in a graph's capture nothing may be put in between."""
        if self._enabled:
            if not self.may_mark():
                if not self.captured:
                    log.warning("laggard: collectives captured in CUDA graphs are not recorded: replays call nothing")
                self.captured += 1
            else:
                self._recorder.totals.lost += 1
        self._restore_live_words()

    def _restore_live_words(self) -> None:
        """The live word shows again what it did before a call that is over."""
        words = self._live.words
        words[WORD_ISSUED] = 0
        if self._in_flight():
            words[WORD_CURRENT], words[WORD_ISSUED] = self._last

    def _never_ended(self, entries: Sequence[_PendingCollective]) -> None:
        for entry in entries:
            self.timeline.add(entry.arrival, self.timeline.never_ended, entry.launch, entry.arrival)


def _is_async(options: Any) -> bool:
    """Tells by a call's options, which come last. They do not say before torch 2.8: then the call may be either."""
    return getattr(options, "asyncOp", True) is not False


def _marks(batch: Sequence[_PendingCollective], before: Any) -> list[Any]:
    """The marks that a batch holds, and `before`, which may be its last arrival."""
    marks = [entry.arrival for entry in batch if entry.arrival is not None]
    return marks if before is None or (batch and before is batch[-1].arrival) else [before, *marks]
