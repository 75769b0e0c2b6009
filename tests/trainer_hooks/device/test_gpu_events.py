"""How `make gpu-check` checks the hooks' times, on a lazy device: true times pass, and no others."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
from support.lazy_device import LazyDevice, Work, work_class
from support.paths import REPOSITORY

from laggard.trainer_hooks.device.collectives import DeviceCollectives

SCRIPT = REPOSITORY / "scripts" / "gpu_events.py"


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_events", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MS, module.TOLERANCE, module.STEPS = 0.003, 0.015, 5  # threads take their turns later than a GPU's streams
    return module


def lazy_lab(events: ModuleType, device: LazyDevice) -> Any:
    calls: list[DeviceCollectives] = []

    def find(recorder: Any) -> DeviceCollectives:
        calls[:] = calls or [DeviceCollectives(device, recorder)]
        return calls[0]

    side, lazy_work = device.new_stream(), work_class()

    class LazyLab(events.Lab):  # type: ignore[misc,name-defined]
        work = staticmethod(device.work)
        synchronize = staticmethod(device.synchronize)

        def launch(self, seconds: float) -> Work:
            device.network.submit(device.place().passed.wait)
            with device.on(device.network):
                device.work(seconds)
            return lazy_work(device, device.place(device.network))

        def second(self) -> Any:
            return device.on(side)

        def join(self) -> None:
            calls[0].time_stream_wait(device.wait_for, side)

    lab = LazyLab(lazy_work, find)
    lab.tensor = type("Tensor", (), {"nbytes": 1024})()
    return lab


@pytest.mark.slow
def test_true_times_pass(events: ModuleType) -> None:
    device = LazyDevice(clock_offset=-(10**15))
    lab = lazy_lab(events, device)
    outcomes = [*events.accuracy(lab), events.no_waiting(lab), events.errors(lab)]
    assert [it for it in outcomes if not it.good] == [] and len(outcomes) == 12
    assert device.offenses == []


@pytest.mark.slow
def test_a_device_whose_clock_is_wrong_does_not_pass(events: ModuleType) -> None:
    device = LazyDevice(drift=1.0)  # two seconds a second
    outcomes = events.accuracy(lazy_lab(events, device))
    assert {it.check for it in outcomes if not it.good} >= {"a delay in forward", "a delay in backward"}


def test_a_host_that_is_held_up_does_not_pass(events: ModuleType) -> None:
    device = LazyDevice()
    lab = lazy_lab(events, device)
    launch = lab.launch
    lab.launch = lambda seconds: (launch(seconds), device.synchronize())[0]
    assert not events.no_waiting(lab).good


def test_the_costs_of_calls_are_measured(events: ModuleType) -> None:
    lab = lazy_lab(events, LazyDevice())
    outcomes = events.cost(lab, lab.bare, lab.reduce, "a collective", calls=20, pairs=3)
    assert [it.check for it in outcomes] == ["cost of a collective", "cost of async a collective", "cost of a step"]
    assert all("budget" in it.text for it in outcomes) and events.errors(lab).good
