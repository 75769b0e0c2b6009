"""Numbers that come from a GPU: read once their event has passed, in order, and never while a graph is captured. A
stand-in is the device, whose events pass when the test says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from laggard.trainer_hooks.device import cuda as digest_copy
from laggard.trainer_hooks.device.cuda import MAX_UNDER_WAY, DigestCopies
from laggard.trainer_hooks.device.gpu import GraphCaptures


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
