"""NCCL's own calls in a group of one rank: what the hooks add to them, and whether all of them are recorded.

Two ranks cannot share a GPU with NCCL, so nothing here compares ranks. A rehearsal uses gloo on the CPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpu_check.lab import Groups, StepSink, cuda_lab
from gpu_check.outcome import CannotRun, Context, Outcome, info, judged, torch_on_gpu
from laggard.trainer_hooks.collectives.process_group import COLLECTIVE_METHODS, hook
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder

COLLECTIVE_BUDGET_US, STEP_BUDGET_US = 10.0, 20.0
LOOP_US = 43.0
"""What host_slowness()'s loop takes on the machine whose budgets these are (docs/measurements.md). A slower host has
budgets as much larger: Python is slower there in the training, too."""
CALLS, PAIRS = 200, 15
MARKS, MARK_PAIRS = 250, 15  # marks and kernels together stay below the thousand launches that CUDA queues


class Bench(NamedTuple):
    """One rank in a process group of its own, on `device`: cuda or cpu."""

    torch: Any
    recorder: Recorder
    sink: StepSink
    device: str
    synchronize: Callable[[], None]
    work: Callable[[float], None]


def run(context: Context) -> Iterator[Outcome]:
    bench = on_cpu() if context.rehearse else on_gpu()
    distributed = bench.torch.distributed
    with tempfile.TemporaryDirectory() as directory:
        store = f"file://{directory}/store"
        backend = "gloo" if context.rehearse else "nccl"
        distributed.init_process_group(backend, init_method=store, rank=0, world_size=1)
        distributed.all_reduce(bench.torch.ones(8, device=bench.device))
        yield from checks(bench)
        distributed.destroy_process_group()


def on_gpu() -> Bench:
    torch = torch_on_gpu()
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        raise CannotRun("this torch is built without NCCL")
    lab = cuda_lab(torch)
    return Bench(torch, lab.recorder, lab.sink, "cuda", torch.cuda.synchronize, lab.work)


def on_cpu() -> Bench:
    import torch

    sink = StepSink()
    return Bench(torch, Recorder([sink]), sink, "cpu", lambda: None, time.sleep)


def checks(bench: Bench) -> Iterator[Outcome]:
    methods = Methods(bench.torch.distributed, bench.recorder)
    yield from cost(bench, methods)
    methods.install(True)
    yield cost_of_step(bench)
    if bench.device == "cuda":
        yield cost_in_stream(bench)
        yield capture(bench)
    yield autograd(bench)
    yield batch(bench)
    errors, lost = bench.recorder.totals.errors, bench.recorder.totals.lost
    yield judged("errors in the hooks", errors == lost == 0, f"{errors} errors, {lost} lost")
    methods.install(False)


class Methods:
    """The methods that the hooks replace in torch.distributed's classes, bare and hooked."""

    def __init__(self, distributed: Any, recorder: Recorder) -> None:
        self._classes = (distributed.ProcessGroup, distributed.Work, *distributed.Work.__subclasses__())
        self._bare = self._current()
        hook(distributed, recorder, Groups())  # type: ignore[arg-type]
        self._hooked = self._current()

    def _current(self) -> list[tuple[Any, str, Any]]:
        names = (*COLLECTIVE_METHODS, "wait", "_start_coalescing", "_end_coalescing")
        return [(each, name, vars(each)[name]) for each in self._classes for name in names if name in vars(each)]

    def install(self, hooked: bool) -> None:
        for owner, name, method in self._hooked if hooked else self._bare:
            setattr(owner, name, method)


def host_slowness() -> float:
    """How many times as long Python takes on this host as on that of the budgets; 1 at least."""

    def loop() -> float:
        began, total = time.perf_counter(), 0
        for number in range(1000):
            total += number * number
        return (time.perf_counter() - began) * 1e6

    return max(1.0, min(loop() for _ in range(200)) / LOOP_US)


def cost(bench: Bench, methods: Methods) -> Iterator[Outcome]:
    """What the hooks add to a call, on the host: medians over interleaved pairs. Beside it what two bare events add,
    which is CUDA's part of it."""
    tensor = bench.torch.ones(1 << 20, device=bench.device)
    reduce = bench.torch.distributed.all_reduce
    for name, is_async in (("all_reduce", False), ("all_reduce, async and its wait", True)):
        call = waited_for(reduce, tensor) if is_async else (lambda: reduce(tensor))
        bare_times, added, added_by_events = [], [], []
        for _ in range(PAIRS):
            bare = timed(bench, methods, call, hooked=False)
            added.append(timed(bench, methods, call, hooked=True) - bare)
            if bench.device == "cuda":
                added_by_events.append(timed(bench, methods, Events(bench.torch, call), hooked=False) - bare)
            bare_times.append(bare)
        events = statistics.median(added_by_events or [0.0])
        own, budget = statistics.median(added) - events, COLLECTIVE_BUDGET_US * host_slowness()
        text = f"{own:.2f} us added by the hooks (budget {budget:.3g}) and {events:.2f} us by CUDA for two events"
        whole = f"to {statistics.median(bare_times):.2f} us"
        yield budgeted(bench, f"cost of {name}", own <= budget, f"{text} {whole}")


def budgeted(bench: Bench, check: str, good: bool, text: str) -> Outcome:
    """Judged on a GPU: a rehearsal may run beside anything."""
    return judged(check, good, text) if bench.device == "cuda" else info(check, text)


def waited_for(reduce: Callable[..., Any], tensor: Any) -> Callable[[], None]:
    return lambda: reduce(tensor, async_op=True).wait()


class Events:
    """What two events cost a call: recorded as the hooks record them, and asked for their times at the end."""

    def __init__(self, torch: Any, call: Callable[[], Any]) -> None:
        pool = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(CALLS)]
        self._call, self._pool, self._turn = call, pool, iter(pool * (PAIRS + 1))
        self._stream = torch.cuda.current_stream()

    def __call__(self) -> None:
        before, after = next(self._turn)
        before.record(self._stream)
        self._call()
        after.record(self._stream)

    def ask(self) -> None:
        reference = self._pool[0][0]
        for pair in self._pool:
            for event in pair:
                reference.elapsed_time(event)


def timed(bench: Bench, methods: Methods, call: Callable[[], Any], hooked: bool) -> float:
    """Microseconds of the host for one call. A call with the hooks has its share of what they do at the end of a
    phase and a step, where they read the device's times."""
    methods.install(hooked)
    bench.synchronize()
    bench.recorder.enter(BACKWARD)
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter() - began
    bench.synchronize()
    began = time.perf_counter()
    if isinstance(call, Events):
        call.ask()
    bench.recorder.leave()
    bench.recorder.end_step(bench.recorder.step + 1)
    return (spent + time.perf_counter() - began) / CALLS * 1e6


def cost_of_step(bench: Bench) -> Outcome:
    """What a step's phases cost the host, and how much of that is CUDA's: an event for each of their five boundaries,
    recorded and asked."""
    bench.synchronize()
    times, by_events = [], []
    events = phase_events(bench.torch) if bench.device == "cuda" else lambda: None
    for _ in range(200):
        began = time.perf_counter()
        for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
            bench.recorder.enter(phase)
            bench.recorder.leave()
        bench.recorder.end_step(bench.recorder.step + 1)
        between = time.perf_counter()
        events()
        times.append((between - began) * 1e6)
        by_events.append((time.perf_counter() - between) * 1e6)
    cuda, budget = statistics.median(by_events), STEP_BUDGET_US * host_slowness()
    own = statistics.median(times) - cuda
    text = f"{own:.1f} us by the hooks (budget {budget:.3g}) and {cuda:.1f} us by CUDA for five events"
    return budgeted(bench, "cost of a step's phases", own <= budget, text)


def phase_events(torch: Any) -> Callable[[], None]:
    pool, stream = [torch.cuda.Event(enable_timing=True) for _ in range(5)], torch.cuda.current_stream()

    def record_and_ask() -> None:
        for event in pool:
            event.record(stream)
        if pool[-1].query():
            for event in pool:
                pool[0].elapsed_time(event)

    return record_and_ask


def cost_in_stream(bench: Bench) -> Outcome:
    """What an event costs the stream itself, between small kernels that are all queued before the first one runs."""
    torch = bench.torch
    tiny, pool = torch.zeros(8, device="cuda"), [torch.cuda.Event(enable_timing=True) for _ in range(MARKS)]

    def device_seconds(marked: bool) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        bench.work(0.05)
        first.record()
        for event in pool:
            tiny.add_(1)
            if marked:
                event.record()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    added = [device_seconds(True) - device_seconds(False) for _ in range(MARK_PAIRS)]
    return info("cost of a mark in its stream", f"{statistics.median(added) / MARKS * 1e6:.2f} us of the GPU's time")


def capture(bench: Bench) -> Outcome:
    """Captures a graph with a collective: the capture has to succeed, and a replay to compute the right value."""
    torch, recorder = bench.torch, bench.recorder
    device, graph = recorder.live.device, torch.cuda.CUDAGraph()
    tensor = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    before = 0 if device is None else device.facts()["collectives_in_graphs"]
    recorder.enter(FORWARD)
    with torch.cuda.graph(graph):
        tensor += 1
        torch.distributed.all_reduce(tensor)
        recorder.leave()  # a phase's end within the capture
        recorder.enter(BACKWARD)
    graph.replay()
    recorder.leave()
    recorder.end_step(recorder.step + 1)
    torch.cuda.synchronize()
    captured = -1 if device is None else device.facts()["collectives_in_graphs"] - before
    value = float(tensor[0])
    return judged("a graph's capture", (value, captured) == (2.0, 1), f"value {value} (due 2), {captured} not timed")


def autograd(bench: Bench) -> Outcome:
    """Runs collectives in the hooks of backward(), which run on a thread of autograd's, and checks that all are
    recorded."""
    torch, steps = bench.torch, 12
    before = recorded(bench)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(bench.device)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda it: torch.distributed.all_reduce(it.grad))
    inputs = torch.ones(4, 256, device=bench.device)
    for _ in range(steps):
        in_backward(bench, lambda: model(inputs).sum().backward())
    count, due = recorded(bench) - before, steps * len(list(model.parameters()))
    return judged("collectives on autograd's thread", count == due, f"{count} recorded ({due} due)")


def batch(bench: Bench) -> Outcome:
    """Runs several collectives in a batch, which has a single work, and checks that all are recorded."""
    torch, steps = bench.torch, 4
    before, tensors = recorded(bench), [torch.ones(8, device=bench.device) for _ in range(3)]

    def broadcasts() -> None:
        with torch.distributed.distributed_c10d._coalescing_manager(device=tensors[0].device):
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0, async_op=True)

    if bench.device == "cpu":
        return info("collectives in a batch", "gloo has no batches")
    for _ in range(steps):
        in_backward(bench, broadcasts)
    count, due = recorded(bench) - before, steps * len(tensors)
    return judged("collectives in a batch", count == due, f"{count} recorded ({due} due)")


def in_backward(bench: Bench, action: Callable[[], Any]) -> None:
    """A step in whose backward phase `action` is called."""
    bench.recorder.enter(BACKWARD)
    action()
    bench.recorder.leave()
    bench.recorder.end_step(bench.recorder.step + 1)


def recorded(bench: Bench) -> int:
    """How many collectives were recorded so far. An empty step has the device asked for the last ones' times."""
    bench.synchronize()
    in_backward(bench, lambda: None)
    bench.synchronize()
    if bench.recorder.live.device is not None:
        bench.recorder.live.device.poll()
    bench.recorder.drain()
    return bench.sink.count
