"""The CUDA part of the hooks, on torch.cuda's names over a lazy device; and that the real torch has those names."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.lazy_device import LazyDevice, Network, as_torch
from support.lazy_torch import lazy_torch

from laggard.environment import ENV_HOST_CLOCK
from laggard.rankfile import Lane
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.record.records import StepRecord, Totals
from laggard.trainer_hooks.session import device_finder

MS = 0.0025


class KeepingSink:
    """Keeps the steps, and counts the collectives."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.collected = 0
        self.on_device = 0

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None: ...

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self.collected += len(numbers) // 5
        self.on_device += len(launched)

    def step(self, record: StepRecord, totals: Totals) -> None:
        self.steps.append(record)

    def flush(self, totals: Totals) -> None: ...

    def close(self) -> None: ...


class Groups:
    def lane_logs(self, op: str) -> dict[Any, Any]:
        return {}

    def lane_log(self, recorder: Recorder, op: str, group: Any) -> Any:
        return recorder.lane(Lane(op, "dp", "dp"), (0, 1))


class Tensor:
    nbytes, is_cuda = 64, True


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = lazy_torch(LazyDevice(clock_offset=10**15))
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def recorder_to(kept: KeepingSink) -> Recorder:
    """As a session makes it."""
    return Recorder([kept], find_device=device_finder(os.environ))


def train(torch: Any, recorder: Recorder, backward: Any, steps: int = 6) -> None:
    for _ in range(steps):
        for phase, action in ((FORWARD, lambda: torch.lazy.work(4 * MS)), (BACKWARD, backward), (OPTIMIZER, None)):
            recorder.enter(phase)
            if action:
                action()
            recorder.leave()
        recorder.end_step(recorder.step + 1)
    torch.lazy.synchronize()
    recorder.close()


def hooked(torch: Any, recorder: Recorder, seconds: float) -> Any:
    network = Network(torch.lazy, lambda tensor, group: time.sleep(seconds))
    hook_waits(network.work_class, recorder)
    return as_torch(instrument(network.allreduce, CollectiveMethod("all_reduce", 0), recorder, Groups(), "allreduce"))  # type: ignore[arg-type]


def test_events_time_the_device(torch: Any) -> None:
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 12 * MS)
    train(torch, recorder, lambda: reduce(Tensor(), "nccl"))
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(12 * MS, abs=6 * MS)
    assert median(step.phases[FORWARD] for step in kept.steps[1:]) / 1e9 == pytest.approx(4 * MS, abs=4 * MS)


@pytest.mark.parametrize("how", ["wait_stream", "stream.synchronize", "event.synchronize", "synchronize"])
def test_each_way_to_wait_for_a_second_stream_is_seen(torch: Any, how: str) -> None:
    """torch.cuda's own waits do what they did, and the part of them that was for a collective is waiting."""
    kept, side = KeepingSink(), torch.lazy.new_stream()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 16 * MS)

    def backward() -> None:
        other = torch.cuda.stream_of(side)
        with torch.lazy.on(side):
            reduce(Tensor(), "nccl")
            event = torch.cuda.Event()
            event.record(other)
        torch.lazy.work(4 * MS)
        {
            "wait_stream": lambda: torch.cuda.current_stream().wait_stream(other),
            "stream.synchronize": other.synchronize,
            "event.synchronize": event.synchronize,
            "synchronize": torch.cuda.synchronize,
        }[how]()

    train(torch, recorder, backward)
    assert recorder.totals.errors == recorder.totals.lost == 0 and len(kept.steps) == 6
    # the second stream does not wait for the forward pass: half of the collective overlaps with it
    assert median(step.waited for step in kept.steps[1:]) / 1e9 == pytest.approx(8 * MS, abs=6 * MS)


def test_a_capture_on_any_stream_is_left_alone(torch: Any) -> None:
    kept = KeepingSink()
    recorder = recorder_to(kept)
    reduce = hooked(torch, recorder, 0.0)

    def backward() -> None:
        reduce(Tensor(), "nccl")
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=None)
        reduce(Tensor(), "nccl")
        torch.lazy.in_capture = False  # the present stream is not the one that captures
        reduce(Tensor(), "nccl")
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
        handle = reduce(Tensor(), "nccl", async_op=True)
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


def test_the_real_torch_has_the_names_that_the_lazy_one_has() -> None:
    """A build without CUDA lacks the functions in C, but has their Python side and types."""
    source = pytest.importorskip("torch")
    names = Path(source.__file__).with_name("_C").joinpath("__init__.pyi").read_text()
    for name in ("_cuda_getDevice() -> _int", "_cuda_getCurrentRawStream(device: _int) -> _int"):
        assert f"def {name}" in names
    for owner, name in (
        *((source.cuda.Event, name) for name in ("record", "query", "wait", "synchronize", "elapsed_time")),
        *((source.cuda.Stream, name) for name in ("synchronize", "wait_event", "wait_stream")),
        *((source.cuda.CUDAGraph, name) for name in ("capture_begin", "capture_end")),
        (source.cuda, "synchronize"),
    ):
        assert inspect.isfunction(getattr(owner, name)), f"{owner} {name}: the hooks put theirs in its place"
    assert "event.wait(self)" in inspect.getsource(source.cuda.Stream.wait_event)
