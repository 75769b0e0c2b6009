"""The CUDA part of the hooks, on torch.cuda's names over a lazy device; and that the real torch has those names."""

import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.lazy_torch import LazyTensor
from support.lazy_training import MS, KeepingSink, hooked, recorder_to, train, train_step, usual

from laggard.kit.environment import ENV_HOST_CLOCK
from laggard.trainer_hooks.device.gpu import GraphCaptures
from laggard.trainer_hooks.record.events import FORWARD


def test_events_time_the_device(torch: Any) -> None:
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 12 * MS)
    train(torch, recorder, lambda: reduce(LazyTensor(), "nccl"))
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert usual(kept.steps, lambda step: step.waited) == pytest.approx(12 * MS, abs=6 * MS)
    assert usual(kept.steps, lambda step: step.phases[FORWARD]) == pytest.approx(4 * MS, abs=4 * MS)


WAYS_TO_WAIT = ("wait_stream", "stream.synchronize", "event.synchronize", "synchronize", "accelerator.synchronize")


def test_a_capture_that_cuda_does_not_let_ask_about_is_one(torch: Any) -> None:
    """C++ captures a blocking stream: of the legacy stream CUDA answers cudaErrorStreamCaptureImplicit."""
    torch.cuda.set_device(1)
    runtime, stream, captures = torch.lazy_cuda.runtime, torch.lazy.new_stream(blocking=True), GraphCaptures()
    captures.stream_is_captured = torch._C._cuda_isCurrentStreamCapturing
    runtime.stream_begin_capture(stream)
    assert captures.under_way() and captures.ended_at > 0
    runtime.stream_end_capture(stream)
    assert not captures.under_way()


def test_an_error_of_the_gpu_is_no_capture(torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """CUDA repeats such an error at every question, also at that for captures. The host's clock counts from there."""
    torch.cuda.set_device(1)
    recorder = recorder_to(KeepingSink())
    reduce = hooked(torch, recorder, 0.0)
    train_step(torch, recorder, lambda: reduce(LazyTensor(), "nccl"))
    timer = recorder.live.device
    torch.lazy_cuda.runtime.broken = "cudaErrorAssert"
    recorder.enter(FORWARD)
    assert timer is not None and timer.mark() is None and recorder.live.device is None
    assert recorder.totals.errors == 1
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and "the host's clock is used: CUDA error: device-side assert triggered" in said[0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12: the child ends by _exit()
def test_a_forked_child_asks_cuda_nothing(torch: Any) -> None:
    """It has the parent's hooks in torch, and what the parent's GPU had yet to come to."""
    recorder, captures = recorder_to(KeepingSink()), GraphCaptures()
    reduce = hooked(torch, recorder, 0.0)
    gate = torch.lazy.block()
    train_step(torch, recorder, lambda: reduce(LazyTensor(), "nccl"))
    timer = recorder.live.device
    assert timer is not None
    captures.stream_is_captured = torch._C._cuda_isCurrentStreamCapturing
    captures.count = 1  # another thread of the parent captures
    child = os.fork()
    if not child:
        asked: list[str] = []
        for name in vars(torch._C):
            setattr(torch._C, name, lambda *_, name=name: asked.append(name) or -1)
        recorder.disable_after_fork()
        captures.forget()
        timer.poll()
        timer.time_stream_wait(lambda: None)
        recorder.enter(FORWARD)
        recorder.leave()
        right = not captures.under_way() and timer.mark() is None and recorder.totals.errors == 0
        os._exit(0 if right and asked == [] else 1)
    gate.set()
    assert os.waitpid(child, 0)[1] == 0
    torch.cuda.synchronize(1)


def test_a_training_that_another_thread_ends_makes_no_context_there(torch: Any) -> None:
    """The interpreter's exit, after a training on a thread of its own. To CUDA, GPU 0 is the current one of a thread
    that has made no call for another."""
    kept = KeepingSink()
    recorder = recorder_to(kept)
    gate: list[threading.Event] = []

    def training() -> None:
        train_step(torch, recorder, lambda: None)
        gate.append(torch.lazy.block())
        train_step(torch, recorder, lambda: None)

    thread = threading.Thread(target=training)
    thread.start()
    thread.join()
    gate[0].set()
    torch.lazy.synchronize()
    recorder.close()
    assert len(kept.steps) == 2 and recorder.totals.errors == 0 and torch.lazy_cuda.contexts == {1}


def test_the_training_waits_by_synchronize_of_a_handle(torch: Any) -> None:
    """Work.synchronize() has the present stream wait for the collective, as wait() has."""
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 16 * MS)

    def backward() -> None:
        handle = reduce(LazyTensor(), "nccl", async_op=True)
        torch.lazy.work(4 * MS)
        handle.synchronize()
        handle.wait()  # a second time: nothing to wait for

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(12 * MS, abs=6 * MS)


def on_thread(torch: Any, whose: str, act: Callable[[], object]) -> None:
    """Acts on the thread that trains, on another, or on one of autograd's."""
    if whose == "the training's":
        act()
        return

    def run() -> None:
        if whose == "autograd's":
            torch.lazy_cuda.autograd = threading.get_ident()
        act()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.lazy_cuda.autograd = 0


@pytest.mark.parametrize("how", WAYS_TO_WAIT)
@pytest.mark.parametrize("whose", ["the training's", "another", "autograd's"])
def test_each_way_to_wait_for_a_second_stream_is_seen(torch: Any, how: str, whose: str) -> None:
    """torch.cuda's own waits do what they did, and the part of them that was for a collective is waiting: not where
    another thread waits, which writes a checkpoint. Autograd's thread runs a part of the backward pass."""
    kept, side = KeepingSink(), torch.lazy.new_stream()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 16 * MS)

    def backward() -> None:
        other = torch.cuda.stream_of(side)
        with torch.lazy.on(side):
            reduce(LazyTensor(), "nccl")
            event = torch.cuda.Event()
            event.record(other)
        torch.lazy.work(4 * MS)
        ways = {
            "wait_stream": lambda: torch.cuda.current_stream(1).wait_stream(other),
            "stream.synchronize": other.synchronize,
            "event.synchronize": event.synchronize,
            "synchronize": lambda: torch.cuda.synchronize(1),
            "accelerator.synchronize": lambda: torch.accelerator.synchronize(1),
        }
        on_thread(torch, whose, ways[how])

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0 and len(kept.steps) == 6
    # the second stream does not wait for the forward pass: half of the collective overlaps with it
    waited = 0.0 if whose == "another" else 8 * MS
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(waited, abs=6 * MS)


@pytest.mark.parametrize("whose", ["another", "autograd's"])
@pytest.mark.parametrize("async_op", [False, True])
def test_other_threads_collectives_are_no_wait_of_the_training(torch: Any, whose: str, async_op: bool) -> None:
    """A checkpoint's thread makes collectives of its own while the training computes."""
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 8 * MS)

    def communicate() -> None:
        handle = reduce(LazyTensor(), "nccl", async_op=async_op)
        if handle is not None:
            handle.wait()

    def backward() -> None:
        on_thread(torch, whose, communicate)
        torch.lazy.work(4 * MS)

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.collected == 6
    waited = 0.0 if whose == "another" else 8 * MS
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(waited, abs=6 * MS)
    assert kept.on_device == (0 if whose == "another" else 6)


@pytest.mark.parametrize("graph", ["CUDAGraph", "Graph"])
def test_a_capture_on_any_stream_is_left_alone(torch: Any, graph: str) -> None:
    kind = getattr(torch.cuda, graph, None) or getattr(torch.accelerator, graph)
    kept, side = KeepingSink(), torch.cuda.Stream(1)
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 0.0)

    def backward() -> None:
        reduce(LazyTensor(), "nccl")
        graph = kind()
        with torch.cuda.stream(side):
            graph.capture_begin()
            reduce(LazyTensor(), "nccl")
            with torch.cuda.stream(torch.cuda.stream_of(torch.lazy.main)):  # the present stream does not capture
                reduce(LazyTensor(), "nccl")
            graph.capture_end()

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0
    assert len(kept.steps) == 6 and kept.collected == 6, "one of three is to be recorded"


def test_one_hardware_queue_gets_no_marks_at_launches(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 16 * MS)
    marks: list[int] = []
    place = torch.cuda.Event.record

    def counted(event: Any, stream: Any = None) -> None:
        marks.append(1)
        place(event, stream)

    torch.cuda.Event.record = counted

    def backward() -> None:
        before = len(marks)
        handle = reduce(LazyTensor(), "nccl", async_op=True)
        assert len(marks) == before
        torch.lazy.work(4 * MS)
        handle.wait()

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == 6
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(12 * MS, abs=6 * MS)


def test_the_hosts_clock_on_request(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_HOST_CLOCK, "1")
    recorder = recorder_to(KeepingSink())
    recorder.enter(FORWARD)
    assert recorder.live.device is None


def test_a_torch_without_the_functions_needed_is_timed_on_the_host(torch: Any) -> None:
    del torch._C._cuda_getCurrentRawStream
    kept = KeepingSink()
    recorder = recorder_to(kept)
    train(torch, recorder, lambda: None)
    assert recorder.live.device is None and recorder.totals.errors == 0 and len(kept.steps) == 6


@pytest.mark.slow
def test_autograd_alone_is_inside_a_graph_task() -> None:
    """By that the hooks know autograd's threads."""
    source = pytest.importorskip("torch")
    task = source._C._current_graph_task_id
    leaf, seen = source.ones(2, requires_grad=True), []

    def during(_: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(("another thread", task() >= 0)))
        thread.start()
        thread.join()
        seen.append(("backward", task() >= 0))
        source.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(("its end", task() >= 0)))

    leaf.register_hook(during)
    leaf.sum().backward()
    seen.append(("afterwards", task() >= 0))
    assert seen == [("another thread", False), ("backward", True), ("its end", True), ("afterwards", False)]


def test_the_real_torch_has_the_names_that_the_lazy_one_has() -> None:
    """A build without CUDA lacks the functions in C, but has their Python side and types."""
    source = pytest.importorskip("torch")
    names = Path(source.__file__).with_name("_C").joinpath("__init__.pyi").read_text()
    for name in (
        *("_cuda_getDevice() -> _int", "_cuda_getCurrentRawStream(device: _int) -> _int"),
        *("_cuda_exchangeDevice(device: _int) -> _int", "_cuda_maybeExchangeDevice(device: _int) -> _int"),
        *("_cuda_isCurrentStreamCapturing() -> _bool", "_current_graph_task_id() -> _int"),
    ):
        assert f"def {name}" in names
    accelerator = getattr(source, "accelerator", None)  # since torch 2.6, and its Graph since 2.12
    graphs = (source.cuda.CUDAGraph, *([accelerator.Graph] if hasattr(accelerator, "Graph") else []))
    for owner, name in (
        *((source.cuda.Event, name) for name in ("record", "query", "wait", "synchronize", "elapsed_time")),
        *((source.cuda.Stream, name) for name in ("synchronize", "wait_event", "wait_stream")),
        *((graph, name) for graph in graphs for name in ("capture_begin", "capture_end")),
        *((owner, "synchronize") for owner in (source.cuda, accelerator) if owner is not None),
    ):
        assert inspect.isfunction(getattr(owner, name)), f"{owner} {name}: the hooks put theirs in its place"
    assert "event.wait(self)" in inspect.getsource(source.cuda.Stream.wait_event)
