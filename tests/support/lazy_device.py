"""A device that runs behind the host, without hardware: each stream is a thread that works off a queue of its own.

It stands in for a GPU with NCCL in everything that the hooks' device timing relies on: a launch returns at once, a
stream passes a mark when it comes to it, a stream can wait for a place in another, a collective runs in a stream of its
own after what was queued before it, its handle's wait() holds up a stream and not the host, what is launched into a
stream that is captured does not run, and the device's clock is not the host's. The work and the waits are real, and so
may the collectives be (gloo's, between processes).

lazy_cudart.py and lazy_torch.py put CUDA's and torch's names and rules over such devices; lazy_cuda_device.py is what
the hooks mark one by.

Its times are those of a device, which a busy machine does not hold up: a stream counts how long its work takes from
when it could begin, and its thread, which may come late to it, sleeps until that time has come.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LAUNCH_NS = 6000
"""What the launch of a kernel through torch takes of the host, at least: 5 us and more."""


def launch() -> None:
    """Takes the host as long as a launch."""
    began = time.perf_counter_ns()
    while time.perf_counter_ns() - began < LAUNCH_NS:
        pass


class Place:
    """Where a stream was at one time; set when it has come there. `at` is by the host's clock, `time` by the
    device's."""

    def __init__(self) -> None:
        self.passed = threading.Event()
        self.at = self.time = 0


Item = Callable[[int], int]
"""What a stream does. It gets the time from which on it can be done, and returns when it is done, in nanoseconds."""


_numbers = itertools.count(1)
"""The numbers of streams: addresses in one process, so that none is on two devices, but for the default streams, which
are 0 on each."""


class Stream:
    """Its thread begins with its first work. `blocking`: it has not CUDA's flag cudaStreamNonBlocking, so that the
    default stream waits for it. `captured`: it is being captured, so that what it gets goes into a graph."""

    def __init__(self, number: int, blocking: bool = False) -> None:
        self.number = number
        self.blocking = blocking
        self.captured = False
        self.at = 0  # when it has done, or will have done, all that its thread has come to
        self._items: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._thread: threading.Thread | None = None

    def _run(self) -> None:
        while True:
            launched, item = self._items.get()
            self.at = item(max(self.at, launched))
            with self._lock:
                self._unfinished -= 1

    def submit(self, item: Item) -> None:
        if self.captured:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name=f"stream {self.number}")
                self._thread.start()
            self._unfinished += 1
            self._items.put((time.perf_counter_ns(), item))

    def take(self, seconds: float) -> None:
        """Work that takes so long."""
        launch()
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


class LazyDevice:
    """The device of one rank. `clock_offset` and `drift`: how its clock differs from the host's (ns, ratio). Which
    stream is current is each thread's own, as in torch."""

    def __init__(self, clock_offset: int = 0, drift: float = 0.0) -> None:
        self._offset, self._drift = clock_offset, drift
        self._zero = time.perf_counter_ns()
        self.main = Stream(0)
        self.streams = {0: self.main}
        self.network = self.new_stream()
        self._of_thread = threading.local()

    # What a user of the device does.

    def new_stream(self, blocking: bool = False) -> Stream:
        stream = Stream(next(_numbers), blocking)
        self.streams[stream.number] = stream
        return stream

    @property
    def current(self) -> Stream:
        """The stream on which this thread launches."""
        return getattr(self._of_thread, "stream", self.main)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._of_thread.stream = stream

    @contextmanager
    def on(self, stream: Stream) -> Iterator[Stream]:
        former, self.current = self.current, stream
        try:
            yield stream
        finally:
            self.current = former

    def work(self, seconds: float) -> None:
        """A kernel that takes so long, on the present stream."""
        self.current.take(seconds)

    def block(self) -> threading.Event:
        """A kernel that ends only when the returned event is set."""
        gate = threading.Event()
        self.current.submit(lambda begin: (gate.wait(), max(begin, time.perf_counter_ns()))[1])
        return gate

    def place(self, stream: Stream | None = None) -> Place:
        """The end of a stream as it is now."""
        place = Place()

        def come(at: int) -> None:
            place.at, place.time = at, self._clock(at)
            place.passed.set()

        (stream or self.current).mark(come)
        return place

    def wait_for(self, other: Stream) -> None:
        """The present stream waits for all that `other` has to do now. Returns at once."""
        self.current.wait_for(self.place(other))

    def synchronize(self, stream: Stream | None = None) -> None:
        """The host waits."""
        assert self.place(stream).passed.wait(300), "the lazy device stands still"

    def _clock(self, at: int) -> int:
        """The device's clock, at a time of the host's."""
        return at + self._offset + round((at - self._zero) * self._drift)


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
        if device.current.captured:
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
        self._device.current.wait_for(self._done)

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
