#!/usr/bin/env python3
"""Checks that the hooks' times on a GPU are true, with delays of known length in every place, and what the hooks cost.

Run by gpu-check with a Python that has torch; needs one CUDA GPU. The delays are kernels that spin (torch.cuda._sleep,
calibrated). Collectives with a delay of their own work as NCCL's do: on a stream of their own behind the current one,
which then waits. NCCL itself runs in a group of one rank, to time its calls and for the captures: two ranks cannot
share a GPU with NCCL, so comparisons between ranks are left to the tests, which have them on gloo.
Prints one line for each check; with a folder as argument, writes events-QUEUES.json there. Exit status: 0 where all is
true and within its budget, 1 where something is not, 2 where there is no torch or no GPU.
"""

from __future__ import annotations

import abc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "src"))

from laggard.trainer_hooks.collectives.process_group import (  # noqa: E402
    COLLECTIVE_METHODS,
    CollectiveMethod,
    hook,
    hook_waits,
    instrument,
)
from laggard.trainer_hooks.device.captures import GraphCaptures  # noqa: E402
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, INPUT, OPTIMIZER, Recorder  # noqa: E402
from laggard.trainer_hooks.session import device_finder  # noqa: E402

MS = 1e-3
STEPS = 12
TOLERANCE_RATIO, TOLERANCE = 0.05, 0.3 * MS  # of a delay, and of the launches around it
COLLECTIVE_BUDGET_US, STEP_BUDGET_US = 10.0, 20.0


class Outcome(NamedTuple):
    check: str
    good: bool
    text: str


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

    def lane_logs(self, op: str) -> dict[Any, Any]:
        return self._logs

    def lane_log(self, recorder: Recorder, op: str, group: Any, peer: int = -1) -> Any:
        from laggard.rankfile import Lane

        return recorder.lane(Lane(op, "dp", "dp:0"), (0,))


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

    def _allreduce(self, seconds: float, tensors: Any, options: Any) -> Any:
        """Like a process group's method; the argument in the group's place is how long the collective takes."""
        return self.launch(seconds)

    def steps(self, actions: dict[int, Callable[[], None]]) -> list[Any]:
        """Runs STEPS steps with each phase's action, and returns what was recorded of them, without the first."""
        before = len(self.sink.steps)
        for _ in range(STEPS):
            for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
                self.recorder.enter(phase)
                actions.get(phase, lambda: None)()
                self.recorder.leave()
            self.recorder.end_step(self.recorder.step + 1)
        self.synchronize()
        if self.recorder.live.device is not None:
            self.recorder.live.device.poll()
        self.recorder.drain()
        return self.sink.steps[before + 1 :]

    @abc.abstractmethod
    def work(self, seconds: float) -> None:
        """Keeps the current stream busy."""

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
    def synchronize(self) -> None: ...


class Options:
    """Like torch's AllreduceOptions."""

    def __init__(self, async_op: bool) -> None:
        self.asyncOp = async_op


def _as_torch(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `method` as torch.distributed.all_reduce wraps a process group's method."""

    def reduce(tensor: Any, seconds: float = 0.0, async_op: bool = False) -> Any:
        work = method(seconds, [tensor], Options(async_op))
        return work if async_op else work.wait()

    return reduce


def accuracy(lab: Lab) -> list[Outcome]:
    """Puts delays of 5 to 15 ms in each place, and compares own time by phase and waiting with what is expected."""
    reduce = lab.reduce

    def overlapped(transfer: float, work: float) -> Callable[[], None]:
        def action() -> None:
            handle = reduce(lab.tensor, transfer, async_op=True)
            lab.work(work)
            handle.wait()

        return action

    def on_second_stream(transfer: float, work: float) -> Callable[[], None]:
        def action() -> None:
            with lab.second():
                reduce(lab.tensor, transfer)
            lab.work(work)
            lab.join()

        return action

    def slow_input() -> None:
        time.sleep(10 * MS)

    def busy_then(action: Callable[[], None]) -> dict[int, Callable[[], None]]:
        return {FORWARD: lambda: lab.work(5 * MS), BACKWARD: action}

    cases: list[tuple[str, dict[int, Callable[[], None]], dict[int, float], float]] = [
        (f"a delay in {name}", {phase: lambda: lab.work(10 * MS)}, {phase: 10 * MS}, 0.0)
        for name, phase in (("forward", FORWARD), ("backward", BACKWARD), ("optimizer", OPTIMIZER))
    ]
    cases += [
        ("a delay in a collective", busy_then(lambda: reduce(lab.tensor, 10 * MS)), {FORWARD: 5 * MS}, 10 * MS),
        ("a collective hidden behind work", busy_then(overlapped(5 * MS, 15 * MS)), {BACKWARD: 15 * MS}, 0.0),
        ("a collective half hidden", busy_then(overlapped(15 * MS, 5 * MS)), {BACKWARD: 5 * MS}, 10 * MS),
        ("on a second stream, hidden", busy_then(on_second_stream(5 * MS, 15 * MS)), {BACKWARD: 15 * MS}, 0.0),
        ("on a second stream, half hidden", busy_then(on_second_stream(15 * MS, 5 * MS)), {BACKWARD: 5 * MS}, 10 * MS),
        ("input while the device works", {INPUT: slow_input, FORWARD: lambda: lab.work(15 * MS)}, {INPUT: 0.0}, 0.0),
        ("input that the device waits for", {INPUT: slow_input}, {INPUT: 10 * MS}, 0.0),
    ]
    return [_judge(name, lab.steps(actions), own, waited) for name, actions, own, waited in cases]


def _judge(name: str, steps: list[Any], own: dict[int, float], waited: float) -> Outcome:
    if len(steps) != STEPS - 1:
        return Outcome(name, False, f"{len(steps)} of {STEPS - 1} steps were recorded")
    measured = {phase: statistics.median(step.phases[phase] for step in steps) / 1e9 for phase in own}
    waits = statistics.median(step.waited for step in steps) / 1e9
    pairs = [(own[phase], measured[phase]) for phase in own] + [(waited, waits)]
    good = all(abs(actual - due) <= TOLERANCE + TOLERANCE_RATIO * due for due, actual in pairs)
    phases = ", ".join(f"own {measured[phase] * 1e3:.2f} ms (due {due * 1e3:.0f})" for phase, due in own.items())
    return Outcome(name, good, f"{phases}, waited {waits * 1e3:.2f} ms (due {waited * 1e3:.0f})")


def no_waiting(lab: Lab) -> Outcome:
    """Queues half a second of work, and checks that thirty collectives and three steps are launched in far less."""
    reduce = lab.reduce
    lab.work(0.5)
    began = time.perf_counter()
    for _ in range(3):  # no more: CUDA itself makes the host wait where about a thousand launches are queued
        lab.recorder.enter(BACKWARD)
        for _ in range(10):
            reduce(lab.tensor, 0.0)
        lab.recorder.leave()
        lab.recorder.end_step(lab.recorder.step + 1)
    spent = time.perf_counter() - began
    lab.synchronize()
    return Outcome("no waiting for the device", spent < 0.25, f"{spent * 1e3:.1f} ms for 30 collectives (due < 250)")


def cost(
    lab: Lab, bare: Callable[..., Any], hooked: Callable[..., Any], what: str, calls: int = 200, pairs: int = 15
) -> list[Outcome]:
    """Measures the host time that the hook adds to a collective's call, and that of a step: medians over interleaved
    pairs."""

    def timed(function: Callable[..., Any], wait: bool) -> float:
        lab.synchronize()
        lab.recorder.enter(BACKWARD)
        began = time.perf_counter()
        for _ in range(calls):
            handle = function(lab.tensor, async_op=wait)
            if wait:
                handle.wait()
        spent = time.perf_counter() - began
        lab.synchronize()
        began = time.perf_counter()
        lab.recorder.leave()  # takes in the device's times
        lab.recorder.end_step(lab.recorder.step + 1)
        return (spent + time.perf_counter() - began) / calls * 1e6

    found = []
    for name, wait in ((what, False), (f"async {what}", True)):
        added = statistics.median(timed(hooked, wait) - timed(bare, wait) for _ in range(pairs))
        bare_us = timed(bare, wait)
        text = f"{added:.2f} us added to {bare_us:.2f} us (budget {COLLECTIVE_BUDGET_US:g})"
        found.append(Outcome(f"cost of {name}", added <= COLLECTIVE_BUDGET_US, text))
    return [*found, _cost_of_step(lab)]


def _cost_of_step(lab: Lab) -> Outcome:
    lab.synchronize()
    times = []
    for _ in range(200):
        began = time.perf_counter()
        for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
            lab.recorder.enter(phase)
            lab.recorder.leave()
        lab.recorder.end_step(lab.recorder.step + 1)
        times.append((time.perf_counter() - began) * 1e6)
    spent = statistics.median(times)
    return Outcome("cost of a step", spent <= STEP_BUDGET_US, f"{spent:.1f} us (budget {STEP_BUDGET_US:g})")


def errors(lab: Lab) -> Outcome:
    totals, device = lab.recorder.totals, lab.recorder.live.device
    facts = device.facts() if device is not None else {"clock": "host"}
    good = totals.errors == totals.lost == 0 and facts["clock"] == "device"
    return Outcome("errors in the hook", good, f"{totals.errors} errors, {totals.lost} lost; {facts}")


def cuda_lab(torch: Any) -> Lab:
    """A CUDA GPU. Its collectives work as NCCL's do: on a stream of their own, for which the current one waits."""
    cycles_per_second = _calibrate(torch)
    network, side = torch.cuda.Stream(), torch.cuda.Stream()

    class Work:
        def __init__(self, event: Any) -> None:
            self._event = event

        def wait(self) -> None:
            # as NCCL's work does: below torch.cuda.Event, which the hooks watch
            torch._C._CudaEventBase.wait(self._event, torch.cuda.current_stream())

    class CudaLab(Lab):
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

    captures = GraphCaptures()
    captures.hook(torch)
    lab = CudaLab(Work, device_finder({}, captures=captures))
    lab.tensor = torch.ones(1 << 20, device="cuda")
    return lab


def _calibrate(torch: Any) -> float:
    """Measures the cycles of torch.cuda._sleep in a second, with events that the hooks do not use."""
    for cycles in (1_000_000, 20_000_000):  # the first wakes the GPU
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
    return 20_000_000 / (float(start.elapsed_time(end)) * 1e-3)


def with_nccl(lab: Lab, torch: Any) -> list[Outcome]:
    """Checks NCCL in a group of one rank: the cost of calls, a graph's capture, autograd's own thread, batches."""
    import tempfile

    if not torch.distributed.is_nccl_available():
        return [Outcome("NCCL", False, "this torch is built without it")]
    with tempfile.TemporaryDirectory() as directory:
        torch.distributed.init_process_group("nccl", init_method=f"file://{directory}/store", rank=0, world_size=1)
        reduce = torch.distributed.all_reduce
        reduce(lab.tensor)
        methods = Methods(torch.distributed, lab.recorder)
        found = cost(lab, methods.calling(reduce, False), methods.calling(reduce, True), "NCCL's all_reduce")
        methods.install(True)
        found += [capture(lab, torch, reduce), autograd(lab, torch, reduce), batch(lab, torch)]
        methods.install(False)
        torch.distributed.destroy_process_group()
    return found


class Methods:
    """The methods that the hooks replace in torch.distributed's classes, bare and hooked."""

    def __init__(self, distributed: Any, recorder: Recorder) -> None:
        self._classes = (distributed.ProcessGroup, distributed.Work, *distributed.Work.__subclasses__())
        self._bare = self._current()
        hook(distributed, recorder, Groups())  # type: ignore[arg-type]
        self._hooked = self._current()
        self.hooked = True

    def _current(self) -> list[tuple[Any, str, Any]]:
        names = (*COLLECTIVE_METHODS, "wait", "_start_coalescing", "_end_coalescing")
        return [(each, name, vars(each)[name]) for each in self._classes for name in names if name in vars(each)]

    def install(self, hooked: bool) -> None:
        self.hooked = hooked
        for owner, name, method in self._hooked if hooked else self._bare:
            setattr(owner, name, method)

    def calling(self, function: Callable[..., Any], hooked: bool) -> Callable[..., Any]:
        """Returns a function that calls `function` with or without the hooks. Such functions may be called in turn:
        each installs what it needs."""
        methods = self

        def call(*args: Any, **named: Any) -> Any:
            if methods.hooked != hooked:
                methods.install(hooked)
            return function(*args, **named)

        return call


def batch(lab: Lab, torch: Any) -> Outcome:
    """Runs several collectives in a batch, which has a single work, and checks that all are recorded."""
    before, tensors, steps = lab.sink.count, [torch.ones(8, device="cuda") for _ in range(3)], 4
    device = tensors[0].device
    for _ in range(steps):
        lab.recorder.enter(BACKWARD)
        with torch.distributed.distributed_c10d._coalescing_manager(device=device):
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0, async_op=True)
        lab.recorder.leave()
        lab.recorder.end_step(lab.recorder.step + 1)
    lab.synchronize()
    lab.steps({})
    lab.recorder.drain()
    count = lab.sink.count - before
    return Outcome("collectives in a batch", count == steps * len(tensors), f"{count} recorded ({steps * 3} due)")


def capture(lab: Lab, torch: Any, reduce: Callable[..., Any]) -> Outcome:
    """Captures a graph with a collective: the capture has to succeed, and a replay to compute the right value."""
    device, graph = lab.recorder.live.device, torch.cuda.CUDAGraph()
    tensor = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    lab.recorder.enter(FORWARD)
    with torch.cuda.graph(graph):
        tensor += 1
        reduce(tensor)
        lab.recorder.leave()  # a phase's end within the capture
        lab.recorder.enter(BACKWARD)
    graph.replay()
    lab.recorder.leave()
    lab.recorder.end_step(lab.recorder.step + 1)
    torch.cuda.synchronize()
    value, captured = float(tensor[0]), device.facts()["collectives_in_graphs"] if device is not None else -1
    return Outcome("a graph's capture", (value, captured) == (2.0, 1), f"value {value} (due 2), {captured} not timed")


def autograd(lab: Lab, torch: Any, reduce: Callable[..., Any]) -> Outcome:
    """Runs collectives in the hooks of backward(), which run on a thread of autograd's, and checks that all are
    recorded."""
    before = lab.sink.count
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).cuda()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: reduce(it.grad))
    lab.steps({BACKWARD: lambda: model(torch.ones(4, 256, device="cuda")).sum().backward()})
    lab.recorder.drain()
    count = lab.sink.count - before
    due = STEPS * len(list(model.parameters()))
    return Outcome("collectives on autograd's thread", count >= due, f"{count} recorded (at least {due} due)")


def main() -> int:
    try:
        import torch
    except ImportError:
        print("gpu-events: this Python has no torch (make gpu-check PYTHON=... with one that has): times not checked")
        return 2
    if not torch.cuda.is_available():
        print(f"gpu-events: torch {torch.__version__} finds no CUDA GPU: times not checked")
        return 2
    torch.cuda.init()
    lab = cuda_lab(torch)
    outcomes = [*accuracy(lab), no_waiting(lab), *with_nccl(lab, torch), errors(lab)]
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
    print(f"gpu-events: {torch.cuda.get_device_name()}, torch {torch.__version__}, hardware queues: {queues}")
    for outcome in outcomes:
        print(f"  {'ok  ' if outcome.good else 'FAIL'} {outcome.check}: {outcome.text}")
    if len(sys.argv) > 1:
        Path(sys.argv[1], f"events-{queues}.json").write_text(json.dumps([it._asdict() for it in outcomes], indent=1))
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
