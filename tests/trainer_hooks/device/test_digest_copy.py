"""What else is asked of a device: copies of digests that wait for nothing, and ROCm in CUDA's place."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_torch import LazyTensor
from support.lazy_training import MS, KeepingSink, hooked, recorder_to, train, usual

from laggard.trainer_hooks.device import cuda as digest_copy
from laggard.trainer_hooks.device.cuda import MAX_UNDER_WAY, DigestCopies
from laggard.trainer_hooks.device.gpu import GraphCaptures, Placement, gpu_uuid
from laggard.trainer_hooks.record.events import BACKWARD


class Slot:
    def __init__(self) -> None:
        self.value = 0

    def copy_(self, value: int, non_blocking: bool) -> None:
        assert non_blocking
        self.value = value

    def __int__(self) -> int:
        return self.value


class Device:
    """Stands in for CudaDevice."""

    def __init__(self, *_: Any) -> None:
        self.passed = 0
        self.marks = 0
        self.released: list[int] = []

    def record(self) -> int:
        self.marks += 1
        return self.marks

    def done(self, mark: int) -> bool:
        return mark <= self.passed

    def release(self, mark: int) -> None:
        self.released.append(mark)


def pinned(count: int, *, dtype: str, device: str, pin_memory: bool) -> list[Slot]:
    assert (dtype, device, pin_memory) == ("int64", "cpu", True)
    return [Slot() for _ in range(count)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[DigestCopies, Device, GraphCaptures]:
    monkeypatch.setattr(digest_copy, "CudaDevice", Device)
    captures = GraphCaptures()
    copies: Any = DigestCopies(SimpleNamespace(empty=pinned, int64="int64"), 1, captures)
    return copies, copies._device, captures


def test_numbers_arrive_in_their_order_once_the_device_has_passed_them(made: Any) -> None:
    copies, device, _ = made
    for step in (0, 10, 20):
        copies.start(step, 100 + step)
    assert copies.arrived() == []
    device.passed = 2
    assert copies.arrived() == [(0, 100), (10, 110)] and device.released == [1, 2]
    device.passed = 3
    assert copies.arrived() == [(20, 120)] and copies.arrived() == []


def test_no_event_is_asked_while_a_graph_is_captured(made: Any) -> None:
    copies, device, captures = made
    copies.start(0, 5)
    device.passed, captures.count = 1, 1
    assert copies.arrived() == []
    captures.count = 0
    assert copies.arrived() == [(0, 5)]


def test_what_is_under_way_is_bounded_and_never_overwritten(made: Any) -> None:
    copies, device, _ = made
    for step in range(2 * MAX_UNDER_WAY):
        copies.start(step, step)
    device.passed = device.marks
    assert copies.arrived() == [(step, step) for step in range(MAX_UNDER_WAY)]
    copies.start(999, 7)
    device.passed = device.marks
    assert copies.arrived() == [(999, 7)]


NVIDIA_ONLY = ("pynvml", "nvidia_smi", "cuda", "cupy")


@pytest.fixture
def rocm(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch.cuda of lazy devices, as a ROCm build has it: RCCL's version, and properties with gcnArchName."""
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip="6.4.43484"), raising=False)
    for name in NVIDIA_ONLY:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises ImportError
    return torch


def test_work_and_waits_are_timed(rocm: Any) -> None:
    kept, placement = KeepingSink(), Placement()
    placement.saw([LazyTensor(0)])
    recorder = recorder_to(kept, placement)
    reduce = hooked(rocm, recorder, 12 * MS, 0)

    def backward() -> None:
        rocm.lazy_cuda.launch(0, 4 * MS)
        reduce(LazyTensor(0), "nccl")

    train(rocm, recorder, backward, device=0)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert usual(kept.steps, lambda step: step.waited) == pytest.approx(12 * MS, abs=6 * MS)
    assert usual(kept.steps, lambda step: step.phases[BACKWARD]) == pytest.approx(4 * MS, abs=4 * MS)


def test_the_uuid_is_torchs_and_may_be_absent(rocm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm.cuda.set_device(0)
    monkeypatch.setattr(rocm.cuda, "is_initialized", lambda: True)
    of = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-"}
    uuid = "66333330-6463-3464-3030-646565323262"
    monkeypatch.setattr(rocm.cuda, "get_device_properties", lambda index: SimpleNamespace(**of, uuid=uuid))
    assert gpu_uuid(0) == f"GPU-{uuid}"
    monkeypatch.setattr(rocm.cuda, "get_device_properties", lambda index: SimpleNamespace(**of))  # torch 2.3
    assert gpu_uuid(0) is None
