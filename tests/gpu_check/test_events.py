"""How `make gpu-check` checks the hooks' times, on a lazy device: true times pass, and no others."""

import time
from typing import Any

import pytest
from support.lazy_cuda_device import LazyCudaDevice
from support.lazy_device import LazyDevice, Place, Work, work_class
from support.lazy_torch import LazyTensor

from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.device.cuda import CudaMark


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Any:
    from gpu_check import lab
    from gpu_check.parts import events

    monkeypatch.setattr(lab, "MS", 0.003)
    monkeypatch.setattr(lab, "STEPS", 5)
    monkeypatch.setattr(events, "TOLERANCE", 0.003)  # threads take their turns later than a GPU's streams
    return events


def lazy_lab(device: LazyDevice, kind: type[LazyCudaDevice] = LazyCudaDevice) -> Any:
    """A lab on a lazy device. `kind`: what the hooks mark it by."""
    from gpu_check.lab import Lab

    calls: list[DeviceCollectives] = []
    gpu = kind(device)

    def find(recorder: Any) -> DeviceCollectives:
        calls[:] = calls or [DeviceCollectives(gpu, recorder)]
        return calls[0]

    side, lazy_work = device.new_stream(), work_class()

    class LazyLab(Lab):
        event = staticmethod(device.place)
        synchronize = staticmethod(device.synchronize)

        def work(self, seconds: float) -> None:
            device.work(seconds)

        def launch(self, seconds: float) -> Work:
            device.network.wait_for(device.place())
            with device.on(device.network):
                self.work(seconds)
            return lazy_work(device, device.place(device.network))

        def second(self) -> Any:
            return device.on(side)

        def join(self) -> None:
            calls[0].time_stream_wait(device.wait_for, side)

        def passed(self, event: Place) -> bool:
            return event.passed.is_set()

        def between(self, earlier: Place, later: Place) -> float:
            return (later.time - earlier.time) / 1e9

    lab = LazyLab(lazy_work, find)
    lab.tensor, lab.gpu = LazyTensor(), gpu
    return lab


def failed(outcomes: list[Any]) -> set[str]:
    return {outcome.check for outcome in outcomes if not outcome.good}


@pytest.mark.slow
def test_true_times_pass(events: Any) -> None:
    device = LazyDevice(clock_offset=-(10**15))
    lab = lazy_lab(device)
    outcomes = [events.clocks(lab), *events.accuracy(lab), events.no_waiting(lab)]
    outcomes += [events.asked_while_another_thread_waits(lab), events.errors(lab)]
    assert failed(outcomes) == set() and len(outcomes) == 15, outcomes
    lab.gpu.check()


@pytest.mark.slow
def test_a_gpu_that_wakes_slowly_passes(events: Any) -> None:
    """Its kernels take three times as long until it has its clock rate: the truth is what they took."""
    device = LazyDevice()
    lab = lazy_lab(device)
    began = time.perf_counter()
    work = device.work
    lab.work = lambda seconds: work(seconds * (3 if time.perf_counter() - began < 0.5 else 1))
    assert failed(events.accuracy(lab)) == set()


def test_the_rate_is_measured_on_a_gpu_that_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that idles has a sixth of its clock rate, and takes a while to raise it."""
    from gpu_check import lab

    monkeypatch.setattr(lab, "WARM_UP_SECONDS", 0.3)
    began, now = time.perf_counter(), [0.0]

    def spin(cycles: int) -> None:
        now[0] += cycles / (2e9 if time.perf_counter() - began > 0.2 else 345e6)

    def synchronize() -> None:
        time.sleep(0.01)

    rate = lab.calibrate(spin, lambda: now[0], lambda earlier, later: later - earlier, synchronize)
    assert rate == pytest.approx(2e9)


class WrongMarks(LazyCudaDevice):
    """Its marks are twice as far from each other as they were."""

    def nanoseconds_between(self, earlier: CudaMark, later: CudaMark) -> int:
        return 2 * super().nanoseconds_between(earlier, later)


@pytest.mark.slow
def test_wrong_times_do_not_pass(events: Any) -> None:
    outcomes = events.accuracy(lazy_lab(LazyDevice(), WrongMarks))
    assert failed(outcomes) >= {"work in forward", "work in backward", "a collective that blocks"}


def test_a_device_whose_clock_is_wrong_does_not_pass(events: Any) -> None:
    """Bare events have the same clock as the marks: only the host's can tell."""
    lab = lazy_lab(LazyDevice(drift=1.0))  # two seconds a second
    assert not events.clocks(lab).good


def test_work_of_no_length_does_not_pass(events: Any) -> None:
    lab = lazy_lab(LazyDevice())
    lab.work = lambda seconds: None
    assert "work of known length" in failed(events.accuracy(lab))
