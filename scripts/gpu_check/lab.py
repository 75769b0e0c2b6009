"""A recorder on a device, with work of known length around it: what laggard measures is compared with bare events.

Bare events are events of the device that the hooks know nothing of: the truth. Collectives here have a length of
their own and work as NCCL's do: on a stream of their own behind the current one, which then waits.
"""

from __future__ import annotations

import abc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from laggard.trainer_hooks.collectives.groups import GroupCounts
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder

MS = 1e-3
STEPS = 12
PHASES = (INPUT, FORWARD, BACKWARD, OPTIMIZER)
WARM_UP_SECONDS = 1.5
CYCLES = 20_000_000  # 10 ms at 2 GHz


class StepTruth(NamedTuple):
    """Seconds between bare events on the main stream: of each phase, and of the waits in it."""

    phases: dict[int, float]
    waits: dict[int, float]

    def own(self, phase: int) -> float:
        return self.phases[phase] - self.waits[phase]

    @property
    def waited(self) -> float:
        return sum(self.waits.values())


class StepSink:
    """A sink that keeps the recorder's steps and counts its collectives."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.count = 0

    def add_lane(self, lane: Any, members: Any) -> None: ...

    def collectives(self, step: int, numbers: Any, launched: Any) -> None:
        self.count += len(numbers) // 5

    def step(self, record: Any, totals: Any) -> None:
        self.steps.append(record)

    def flush(self, totals: Any) -> None: ...

    def close(self) -> None: ...


class Groups:
    """Gives every collective one lane, without a process group."""

    def __init__(self) -> None:
        self._logs: dict[Any, Any] = {}
        self._counts = GroupCounts("0")

    def counts_of(self, group: str) -> GroupCounts:
        return self._counts

    def lane_logs(self, op: str) -> dict[Any, Any]:
        return self._logs

    def lane_log(self, recorder: Recorder, op: str, group: Any, peer: int = -1) -> Any:
        from laggard.rankfile import Lane

        return recorder.lane(Lane(op, "dp", "dp:0"), (0,))


class Options:
    """Like torch's AllreduceOptions."""

    def __init__(self, async_op: bool) -> None:
        self.asyncOp = async_op


class Lab(abc.ABC):
    """A recorder on a device. Each kind of device defines the abstract methods; `work_class` is the class of what
    launch() returns."""

    def __init__(self, work_class: Any, find_device: Any = None) -> None:
        self.sink = StepSink()
        self.recorder = Recorder([self.sink], find_device=find_device)
        self.tensor: Any = None
        self.bare = _as_torch(self._allreduce)
        hooked = instrument(self._allreduce, CollectiveMethod("all_reduce", 0), self.recorder, Groups(), "allreduce")  # type: ignore[arg-type]
        self.reduce = _as_torch(hooked)
        hook_waits(work_class, self.recorder)
        self._waits: list[tuple[Any, Any]] = []  # bare events around the waits of the present phase

    def _allreduce(self, seconds: float, tensors: Any, options: Any) -> Any:
        """Like a process group's method; the argument in the group's place is how long the collective takes."""
        return self.launch(seconds)

    def steps(self, actions: dict[int, Callable[[], None]]) -> list[tuple[Any, StepTruth]]:
        """Runs STEPS steps with each phase's action. Returns what was recorded of each, and the truth, without the
        first step. Fewer where not all were recorded."""
        before = len(self.sink.steps)
        events = [self._step(actions) for _ in range(STEPS)]
        self.synchronize()
        if self.recorder.live.device is not None:
            self.recorder.live.device.poll()
        self.recorder.drain()
        recorded = self.sink.steps[before:]
        if len(recorded) != STEPS:
            return []
        return [(step, self._truth(each)) for step, each in zip(recorded, events, strict=True)][1:]

    def _step(self, actions: dict[int, Callable[[], None]]) -> dict[int, tuple[Any, Any, list[tuple[Any, Any]]]]:
        """Runs one step. Returns the bare events of each phase: its begin and end, and those of its waits."""
        events = {}
        for phase in PHASES:
            self.recorder.enter(phase)
            self._waits, began = [], self.event()
            actions.get(phase, lambda: None)()
            events[phase] = began, self.event(), self._waits
            self.recorder.leave()
        self.recorder.end_step(self.recorder.step + 1)
        return events

    def _truth(self, events: dict[int, tuple[Any, Any, list[tuple[Any, Any]]]]) -> StepTruth:
        return StepTruth(
            {phase: self.between(began, ended) for phase, (began, ended, _) in events.items()},
            {phase: sum(self.between(*pair) for pair in waits) for phase, (*_, waits) in events.items()},
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is done here makes the main stream wait; without that it would take no time."""
        before = self.event()
        yield
        self._waits.append((before, self.event()))

    @abc.abstractmethod
    def work(self, seconds: float) -> None:
        """Keeps the current stream busy for about so long."""

    @abc.abstractmethod
    def launch(self, seconds: float) -> Any:
        """Starts a collective on a stream of its own. Returns its work, whose wait() holds up the current stream."""

    @abc.abstractmethod
    def second(self) -> Any:
        """Returns a context manager in which a second stream is the current one."""

    @abc.abstractmethod
    def join(self) -> None:
        """Makes the current stream wait for the second one."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """The host waits for the device."""

    @abc.abstractmethod
    def event(self) -> Any:
        """Returns a new bare event at the end of the current stream."""

    @abc.abstractmethod
    def passed(self, event: Any) -> bool:
        """Whether the device has come past `event`."""

    @abc.abstractmethod
    def between(self, earlier: Any, later: Any) -> float:
        """Returns the seconds from one bare event to another, both of which the device has passed."""


def _as_torch(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `method` as torch.distributed.all_reduce wraps a process group's method."""

    def reduce(tensor: Any, seconds: float = 0.0, async_op: bool = False) -> Any:
        work = method(seconds, [tensor], Options(async_op))
        return work if async_op else work.wait()

    return reduce


def calibrate(
    spin: Callable[[int], None],
    event: Callable[[], Any],
    between: Callable[[Any, Any], float],
    synchronize: Callable[[], None],
) -> float:
    """Returns how many cycles the kernel `spin` runs through in a second. A GPU that idles has a sixth of its clock
    rate (345 MHz of 1980, on an H100), so it is kept busy first."""
    until = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < until:
        spin(CYCLES)
        synchronize()
    rates = []
    for _ in range(5):
        began = event()
        spin(CYCLES)
        ended = event()
        synchronize()
        rates.append(CYCLES / between(began, ended))
    return statistics.median(rates)


def cuda_lab(torch: Any) -> Lab:
    """A lab on the current CUDA GPU."""
    from laggard.trainer_hooks.device.gpu import GraphCaptures
    from laggard.trainer_hooks.session import device_finder

    torch.cuda.init()

    def bare_event() -> Any:
        found = torch.cuda.Event(enable_timing=True)
        found.record()
        return found

    def seconds_between(earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3

    cycles_per_second = calibrate(torch.cuda._sleep, bare_event, seconds_between, torch.cuda.synchronize)
    network, side = torch.cuda.Stream(), torch.cuda.Stream()

    class Work:
        def __init__(self, event: Any) -> None:
            self._event = event

        def wait(self) -> None:
            # as NCCL's work does: below torch.cuda.Event, which the hooks watch
            torch._C._CudaEventBase.wait(self._event, torch.cuda.current_stream())

    class CudaLab(Lab):
        event = staticmethod(bare_event)
        between = staticmethod(seconds_between)

        def work(self, seconds: float) -> None:
            torch.cuda._sleep(int(seconds * cycles_per_second))

        def launch(self, seconds: float) -> Any:
            ready, done = torch.cuda.Event(), torch.cuda.Event()
            ready.record()
            torch._C._CudaEventBase.wait(ready, network)
            with torch.cuda.stream(network):
                self.work(seconds)
                done.record()
            return Work(done)

        def second(self) -> Any:
            side.wait_stream(torch.cuda.current_stream())
            return torch.cuda.stream(side)

        def join(self) -> None:
            torch.cuda.current_stream().wait_stream(side)

        def synchronize(self) -> None:
            torch.cuda.synchronize()

        def passed(self, event: Any) -> bool:
            return bool(event.query())

    captures = GraphCaptures()
    captures.hook(torch)
    lab = CudaLab(Work, device_finder({}, captures=captures))
    lab.tensor = torch.ones(1 << 20, device="cuda")
    return lab
