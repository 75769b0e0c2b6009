"""The hooks' hot path where the process computes on a device: marks around each call, for the timeline to date.

A collective on a device returns at its launch, long before the device has come to it. So what the host's clock could
tell of it (when it was launched, how long the call took) says nothing about who was late: the marks do.

The live word of the collective in flight is the host's: it shows the last one launched until the training thread has
seen all of them end, at the next phase's boundary. It may so show one that ended since; never another rank's order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import WORD_CURRENT, WORD_ISSUED
from laggard.trainer_hooks.collectives import Handle
from laggard.trainer_hooks.device import Device
from laggard.trainer_hooks.recorder import LaneLog, Recorder
from laggard.trainer_hooks.timeline import Launch, Timeline

log = logging.getLogger("laggard")

clock = time.perf_counter_ns

_POLL_EVERY: Final = 63  # & the number of collectives: phases can be long
_OPEN_LIMIT: Final = 4096


class _Open(NamedTuple):
    """A collective that nobody has waited for yet."""

    launch: Launch
    arrival: Any  # its mark; None where none was left
    device: bool  # or the host's own (gloo)
    step: int
    unbroken: bool  # the stream stands still from the arrival on: there is nothing between the launch and the wait
    others: tuple[_Open, ...] = ()  # launched in one batch with it, and over when it is


class DeviceCalls:
    """Feeds a recorder from a device's timeline. One a process, for its training thread.

    `mark_launches` False: no mark is left at the launch of an asynchronous collective. With one hardware queue for all
    streams (CUDA_DEVICE_MAX_CONNECTIONS=1) what stands before a kernel in the queue can hold it up.
    """

    def __init__(self, device: Device, recorder: Recorder, mark_launches: bool = True) -> None:
        self.timeline = Timeline(device, recorder)
        self.captured = 0  # collectives that went into graphs, and are not recorded
        self._device = device
        self._recorder = recorder
        self._mark_launches = mark_launches
        self.main: int | None = None  # the stream of the phases' boundaries
        self._open: dict[int, _Open] = {}
        self._last = (0, 0)  # word and launch of the last collective that went to the device
        self._calls = 0
        self._alive = True

    # Phases and steps.

    def enter(self, phase: int, saw_loader: bool) -> None:
        mark = self._mark()
        if mark is not None:
            self.main = mark.stream
        if self._alive:
            self.timeline.enter(mark, phase, saw_loader)

    def leave(self) -> None:
        mark = self._mark()
        if self._alive:
            self.timeline.leave(mark)
            if self.timeline.in_flight:
                self.poll()

    def end_step(self, finished: int, next_step: int) -> None:
        if not self._alive:
            return
        if self._open:
            self._give_up_old_handles(finished)
        self.timeline.end_step(next_step)
        self.poll()

    def _mark(self) -> Any:
        """A mark at the end of the present stream; None where there is none to be had."""
        device = self._device
        try:
            if not self._alive or device.capturing():
                return None
            mark = device.record()
            if mark is None and device.stream() is not None:
                self.timeline.give_up()  # all marks are in use: the device is too far behind
            return mark
        except Exception as error:
            self._retire(error)
            return None

    def poll(self) -> None:
        """Dates what is over, and takes the collective in flight off the live words once none is."""
        if not self._alive:
            return
        try:
            self.timeline.poll()
        except Exception as error:
            self._retire(error)
        if not self.timeline.in_flight:
            self._recorder.words[WORD_ISSUED] = 0

    def _retire(self, error: Exception) -> None:
        """The device cannot be asked: the host's clock, from the next step on."""
        recorder = self._recorder
        recorder.totals.errors += 1
        if not self._alive:
            return
        self._alive = False
        log.warning("laggard: the GPU's times cannot be had, the host's clock is used: %s", error)
        recorder.fall_back_to_host()

    # Collectives.

    def call(
        self,
        original: Callable[..., Any],
        args: Any,
        kwargs: Any,
        log: LaneLog,
        word: int,
        issued: int,
        tensors: Any,
        group: Any,
    ) -> Any:
        """`original`, once, with its marks. `tensors`: what has the operation's size; None where it moves no data."""
        first, may = self.mark_launch(not self._mark_launches and _is_async(args, kwargs))
        if not may:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._release(first)
            raise
        try:
            launch = (log, word, issued, _bytes(tensors))
            on_device = self._device.carries(tensors, group)
        except Exception:  # arguments that are no tensors as we know them
            self._recorder.totals.errors += 1
            self._release(first)
            self._restore_words()
            return result
        try:
            if result is not None and hasattr(result, "wait"):
                self.launched(word, launch, first, on_device)
                return Handle(result, word, self._finish)
            self._blocked(launch, first, on_device)
        except Exception as error:
            self._retire(error)
        return result

    def _finish(self, work: Any, word: int, args: Any, kwargs: Any) -> Any:
        return self.wait(word, work.wait, *args, **kwargs)

    def mark_launch(self, is_async: bool) -> tuple[Any, bool]:
        """Before a call: the mark of its arrival (None where launches get none), and whether the call is recorded; one
        that is not is to be left alone."""
        if is_async and not self._mark_launches:
            may = self._may_mark()
            mark = None
        else:
            mark = self._mark()
            may = mark is not None
        if not may:
            self._leave_alone()
        return mark, may

    def launched(self, key: int, launch: Launch, arrival: Any, on_device: bool, unbroken: bool = False) -> None:
        """After a call that returned a work, which is known as `key`. `unbroken`: the caller is about to wait for it,
        with nothing between (what torch's synchronous calls do)."""
        if not on_device:
            self._release(arrival)
            arrival, unbroken = None, False
        self._open[key] = _Open(launch, arrival, on_device, self._recorder.step, unbroken and arrival is not None)
        self._restore_words()

    def merge(self, keys: Sequence[int], key: int) -> None:
        """The work `key` stands for all of `keys`, which were launched in one batch; nobody will wait for those."""
        batch = [self._open.pop(each) for each in keys if each in self._open]
        if batch:
            self._open[key] = batch[-1]._replace(others=tuple(batch[:-1]))

    def wait(self, key: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`original` waits for the work known as `key`: the caller's own wait, between marks."""
        opened = self._open.pop(key, None)
        if opened is None:  # waited for a second time, or given up
            return original(*args, **kwargs)
        before = opened.arrival if opened.unbroken else self._mark()
        if before is None or (opened.unbroken and not self._may_mark()):
            self._release(*_marks(opened, before))
            self._leave_alone()
            return original(*args, **kwargs)
        began = clock()
        words = self._recorder.words
        words[WORD_ISSUED] = 0
        words[WORD_CURRENT] = opened.launch[1]
        words[WORD_ISSUED] = began
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._release(*_marks(opened, before))
            raise
        try:
            self._waited(opened, began, before)
        except Exception as error:
            self._retire(error)
        return result

    def _waited(self, opened: _Open, began: int, before: Any) -> None:
        after = self._mark()
        if after is None:
            self._lose(*_marks(opened, before))
        elif opened.device:
            self._last = opened.launch[1], began
            others = tuple((other.launch, other.arrival) for other in opened.others)
            beside = self._is_beside(before)
            self.timeline.collective(opened.launch, opened.arrival, before, after, beside, others)
        else:
            ended = clock()
            for other in opened.others:
                log, word, issued, size = other.launch
                log.put((word, issued, ended, 0, size))
            self.timeline.on_host(opened.launch, ended, ended - began, before, after)
            self._restore_words()
        self._count()

    def _blocked(self, launch: Launch, first: Any, on_device: bool) -> None:
        """A call without a work to wait for is over: for the host, or for the stream."""
        last = self._mark()
        if last is None:
            self._lose(first)
        elif on_device:
            self._last = launch[1:3]
            self.timeline.collective(launch, first, first or last, last, self._is_beside(last))
        else:
            ended = clock()
            self.timeline.on_host(launch, ended, ended - launch[2], first, last)
            self._restore_words()
        self._count()

    def join(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A wait of the present stream for another, or of the host for the device: the user's own, between marks."""
        before = self._mark() if self.may_join() else None
        if before is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            self._release(before)
            raise
        after = self._mark()
        if after is None:
            self._release(before)
        else:
            self.timeline.joined(before, after)
        return result

    def may_join(self) -> bool:
        """Whether a wait on the present stream could be one for a collective."""
        try:
            return bool(self.timeline.beside) and self._alive and self._device.stream() == self.main
        except Exception as error:
            self._retire(error)
            return False

    def close(self) -> None:
        """The training is over: what the device has not come to by now was never seen to end."""
        self._give_up_old_handles(self._recorder.step + 1)
        self.timeline.close()

    def facts(self) -> dict[str, Any]:
        """What there is to say of the device's clock: where it is used, how well it is known, what is not timed."""
        return {
            "clock": "device" if self._alive else "host",
            "clock_off_by_at_most_ns": self.timeline.clock_width,
            "collectives_in_graphs": self.captured,
            "launches_marked": self._mark_launches,
        }

    def _is_beside(self, mark: Any) -> bool:
        return self.main is not None and mark.stream != self.main

    def _may_mark(self) -> bool:
        try:
            return self._alive and not self._device.capturing()
        except Exception as error:
            self._retire(error)
            return False

    def _leave_alone(self) -> None:
        """A collective that gets no marks: in a graph's capture nothing may be put in between."""
        if self._alive:
            if not self._may_mark():
                if not self.captured:
                    log.warning("laggard: collectives captured in CUDA graphs run in them unseen, and are not recorded")
                self.captured += 1
            else:
                self._recorder.totals.lost += 1
        self._restore_words()

    def _lose(self, *marks: Any) -> None:
        self._recorder.totals.lost += 1
        self._release(*marks)

    def _release(self, *marks: Any) -> None:
        for mark in marks:
            if mark is not None:
                self._device.release(mark)

    def _restore_words(self) -> None:
        """The live word shows what it did before a call that is over."""
        words = self._recorder.words
        words[WORD_ISSUED] = 0
        if self.timeline.in_flight:
            words[WORD_CURRENT], words[WORD_ISSUED] = self._last

    def _count(self) -> None:
        self._calls += 1
        if not self._calls & _POLL_EVERY:
            self.poll()

    def _give_up_old_handles(self, finished: int) -> None:
        """A handle that nobody waited for by the end of the step after its launch was never seen to end."""
        stale = [word for word, opened in self._open.items() if opened.step < finished]
        stale += list(self._open)[: max(0, len(self._open) - _OPEN_LIMIT)]
        for word in dict.fromkeys(stale):
            opened = self._open.pop(word)
            for each in (*opened.others, opened):
                self.timeline.never_waited_for(each.launch, each.arrival)


def _is_async(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("async_op")) or any(each is True for each in args)


def _marks(opened: _Open, before: Any) -> list[Any]:
    """The marks of a collective and of its batch, each once."""
    marks = [opened.arrival, before, *(other.arrival for other in opened.others)]
    return list({id(mark): mark for mark in marks if mark is not None}.values())


def _bytes(tensors: Any) -> int:
    if tensors is None:
        return 0
    try:
        return int(tensors.nbytes)
    except AttributeError:
        return sum(each.nbytes for each in tensors)
