"""A device that runs behind the host, without hardware: each stream is a thread that works off a queue of its own.

It stands in for a GPU with NCCL in everything that the hooks' device timing relies on: a launch returns at once, a
stream passes a mark when it comes to it, a stream can wait for a place in another, a collective runs in a stream of its
own after what was queued before it, its handle's wait() holds up a stream and not the host, nothing may be recorded or
asked during a capture, and the device's clock is not the host's. The work and the waits are real, and so may the
collectives be (gloo's, between processes).

Its times are those of a device, which a busy machine does not hold up: a stream counts how long its work takes from
when it could begin, and its thread, which may come late to it, sleeps until that time has come.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Place:
    """Where a stream was at one time; set when it has come there. `at` is by the host's clock, `time` by the
    device's."""

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.at = self.time = 0


Item = Callable[[int], int]
"""What a stream does. It gets the time from which on it can be done, and returns when it is done, in nanoseconds."""


class Stream:
    def __init__(self, number: int) -> None:
        self.number = number
        self.at = 0  # when it has done, or will have done, all that its thread has come to
        self._items: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        threading.Thread(target=self._run, daemon=True, name=f"stream {number}").start()

    def _run(self) -> None:
        while True:
            launched, item = self._items.get()
            self.at = item(max(self.at, launched))
            with self._lock:
                self._unfinished -= 1

    def submit(self, item: Item) -> None:
        with self._lock:
            self._unfinished += 1
            self._items.put((time.perf_counter_ns(), item))

    def take(self, seconds: float) -> None:
        """Work that takes so long."""
        self.submit(lambda begin: sleep_until(begin + round(seconds * 1e9)))

    def wait_for(self, place: Place) -> None:
        def wait(begin: int) -> int:
            place.passed.wait()
            return max(begin, place.at)

        self.submit(wait)

    def mark(self, come: Callable[[int], object]) -> None:
        """Calls `come` with the time when the stream comes to it: at once, where it has nothing to do."""
        with self._lock:
            idle = not self._unfinished
            if idle:
                come(max(self.at, time.perf_counter_ns()))
        if not idle:
            self.submit(lambda begin: (come(begin), begin)[1])


def sleep_until(end: int) -> int:
    time.sleep(max(0, end - time.perf_counter_ns()) / 1e9)
    return end


class LazyMark:
    """A mark that can be put into a stream again: its former place is then gone."""

    def __init__(self) -> None:
        self.stream = self.serial = self.at = 0
        self.place = Place()


class LazyDevice:
    """The device of one rank. `clock_offset` and `drift`: how its clock differs from the host's (ns, ratio)."""

    def __init__(self, limit: int = 16384, clock_offset: int = 0, drift: float = 0.0, index: int = 0) -> None:
        self.index = index
        self.limit = limit
        self.made = 0
        self.in_capture = False
        self.offenses: list[str] = []  # calls that CUDA does not allow
        self._offset, self._drift = clock_offset, drift
        self._zero = time.perf_counter_ns()
        self._numbers = itertools.count()
        self._serials = itertools.count(1)
        self._free: list[LazyMark] = []
        self._home = threading.get_ident()
        self.autograd = 0  # the thread that runs backward passes, beside the home thread
        self.main = self.new_stream()
        self.network = self.new_stream()
        self._current = self.main

    # What a user of the device does.

    def new_stream(self) -> Stream:
        return Stream(next(self._numbers))

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        former, self._current = self._current, stream
        yield
        self._current = former

    def work(self, seconds: float) -> None:
        """A kernel that takes so long, on the present stream."""
        self._current.take(seconds)

    def block(self) -> threading.Event:
        """A kernel that ends only when the returned event is set."""
        gate = threading.Event()
        self._current.submit(lambda begin: (gate.wait(), max(begin, time.perf_counter_ns()))[1])
        return gate

    def place(self, stream: Stream | None = None) -> Place:
        """The end of a stream as it is now."""
        place = Place()

        def come(at: int) -> None:
            place.at, place.time = at, self._clock(at)
            place.passed.set()

        (stream or self._current).mark(come)
        return place

    def wait_for(self, other: Stream) -> None:
        """The present stream waits for all that `other` has to do now. Returns at once."""
        self._current.wait_for(self.place(other))

    def synchronize(self, stream: Stream | None = None) -> None:
        """The host waits."""
        assert self.place(stream).passed.wait(300), "the lazy device stands still"

    def _clock(self, at: int) -> int:
        """The device's clock, at a time of the host's."""
        return at + self._offset + round((at - self._zero) * self._drift)

    # api.AsyncDevice

    def stream(self) -> int:
        return self._current.number

    def capturing(self) -> bool:
        return self.in_capture

    def record(self) -> LazyMark | None:
        self._check("record")
        if not self._free:
            if self.made >= self.limit:
                return None
            self.made += 1
            self._free.append(LazyMark())
        mark = self._free.pop()
        mark.stream, mark.serial, mark.at = self.stream(), next(self._serials), time.perf_counter_ns()
        mark.place = self.place()
        return mark

    def done(self, mark: LazyMark) -> bool:
        self._check("query")
        return mark.place.passed.is_set()

    def nanoseconds_between(self, earlier: LazyMark, later: LazyMark) -> int:
        self._check("elapsed_time")
        if not (earlier.place.passed.is_set() and later.place.passed.is_set()):
            self.offenses.append("elapsed_time of an event that has not come")
        return later.place.time - earlier.place.time

    def release(self, mark: LazyMark) -> None:
        if mark in self._free:
            self.offenses.append("released twice")
        self._free.append(mark)

    def carries(self, tensors: Any, group: Any) -> bool:
        while isinstance(tensors, list):
            tensors = tensors[0]
        return not getattr(tensors, "on_host", False)

    def other_index(self, tensors: Any) -> int | None:
        return None

    def runs_backward(self) -> bool:
        return threading.get_ident() == self.autograd

    def _check(self, what: str) -> None:
        if self.in_capture:
            self.offenses.append(f"{what} during a capture")
        if threading.get_ident() not in (self._home, self.autograd):
            self.offenses.append(f"{what} on another thread")


class Options:
    """As torch's AllreduceOptions, in the versions where they tell whether the call is synchronous."""

    def __init__(self, async_op: bool) -> None:
        self.asyncOp = async_op


Collective = Callable[[int, Any, Any], "int | None"]
"""Does the work of a collective that can begin at a time, on a tensor, in a group; returns once all members have come.
Its result is when it is done, in nanoseconds; None: it is done when it returns."""


def takes(seconds: float) -> Collective:
    """A collective that takes so long."""
    return lambda begin, tensor, group: begin + round(seconds * 1e9)


class Meeting:
    """A collective of `ranks` threads that takes `seconds` from when the last has come to it."""

    def __init__(self, ranks: int, seconds: float, patience: float) -> None:
        self._seconds, self._patience = seconds, patience
        self._begins: list[int] = []
        self._end = 0
        self._gate = threading.Barrier(ranks, self._all_have_come)

    def __call__(self, begin: int, tensor: Any, group: Any) -> int:
        self._begins.append(begin)
        self._gate.wait(self._patience)
        return self._end

    def abort(self) -> None:
        self._gate.abort()

    def _all_have_come(self) -> None:
        self._end = max(self._begins) + round(self._seconds * 1e9)
        self._begins.clear()


class Network:
    """Collectives in the manner of NCCL: `run` does the work in the device's network stream, after what the present
    stream had to do."""

    def __init__(self, device: LazyDevice, run: Collective) -> None:
        self._device = device
        self._run = run
        self.work_class = work_class()

    def allreduce(self, group: Any, tensors: list[Any], options: Any = None) -> Any:
        """As ProcessGroup's method of that name."""
        device, network = self._device, self._device.network
        if device.in_capture:
            return None  # it goes into the graph, and does not run now
        network.wait_for(device.place())

        def run(begin: int) -> int:
            end = self._run(begin, tensors[0], group)
            return max(begin, time.perf_counter_ns()) if end is None else sleep_until(end)

        network.submit(run)
        work = self.work_class(device, device.place(network))
        if options is not None and not options.asyncOp:
            work.wait_now()  # it runs on the present stream
        return work


class Work:
    """A collective's handle: its wait() holds up the present stream."""

    def __init__(self, device: LazyDevice, done: Place) -> None:
        self._device = device
        self._done = done

    def wait_now(self) -> None:
        self._device._current.wait_for(self._done)

    def wait(self) -> None:
        self.wait_now()

    def synchronize(self) -> None:
        self.wait_now()


def work_class() -> type[Work]:
    """A class of its own, whose methods can be hooked for one rank of several in this process."""
    return type("Work", (Work,), {"wait": Work.wait, "synchronize": Work.synchronize})


def as_torch(method: Callable[..., Any]) -> Callable[..., Any]:
    """As torch.distributed.all_reduce calls a process group's method."""

    def all_reduce(tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        work = method(group, [tensor], Options(async_op))
        if async_op or work is None:
            return work
        work.wait()
        return None

    return all_reduce
