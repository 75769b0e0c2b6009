"""Each part of gpu-check, run to its end without a GPU: on a lazy device in the GPU's place; and killed on its way."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch
from support.paths import REPOSITORY
from support.warm import Warm, WarmProcess

sys.path.append(str(REPOSITORY / "scripts"))  # the parameters are its parts

from gpu_check.plan import PARTS, Part

pytestmark = pytest.mark.apart

ON_LAZY_TORCH = ("events", "events-one-queue")

NOT_ON_A_LAZY_DEVICE = {
    "nvml": "it compares NVML with nvidia-smi, and a lazy device has neither: test_on_stand_in_gpus.py",
    "healthcheck": "the probes read NVML, the PCI tree and the kernel's log: test_on_stand_in_gpus.py",
    "active": "it multiplies matrices, and a lazy device computes nothing: test_on_stand_in_gpus.py",
    "graph": "a lazy device captures a mark, and no operations that a replay would repeat",
    "compile": "torch compiles for CUDA, or not at all",
    "no-set-device": "torch's tensors are on one CPU, and not on two devices: test_on_stand_in_gpus.py",
}
"""The parts that cannot run on a lazy device, and why."""

IN_DEEPSPEED = ("zero", "pipeline")
NEEDS_NO_TRAINING = ("versions", "calls")


def test_each_part_that_cannot_run_exists() -> None:
    names = {part.name for part in PARTS}
    assert {*NOT_ON_A_LAZY_DEVICE, *ON_LAZY_TORCH, *IN_DEEPSPEED, *NEEDS_NO_TRAINING} <= names


def test_every_file_of_parts_is_run_by_a_test() -> None:
    """The two parts that nothing runs without a GPU are trainings, as others are that run."""
    files = {path.stem for path in (REPOSITORY / "scripts" / "gpu_check" / "parts").glob("[a-z]*.py")}
    of_parts = {part.name: part.module for part in PARTS}
    assert files == set(of_parts.values())
    run = of_parts.keys() - {name for name, why in NOT_ON_A_LAZY_DEVICE.items() if ".py" not in why}
    assert {of_parts[name] for name in run} == files


@pytest.fixture
def rehearsed(
    tmp_path: Path, warm_torch: Warm, warm_deepspeed: Warm, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Part], list[Any]]:
    """Runs a part in this process, with its jobs' processes started warm: they have torch from the start, whose import
    takes longer than what they do."""

    def run(part: Part) -> list[Any]:
        from gpu_check import outcome

        warm = warm_deepspeed if part.name in IN_DEEPSPEED else warm_torch

        def start(command: Sequence[str], env: Mapping[str, str], **_: Any) -> WarmProcess:
            return warm.start(command[1:], env)

        warmly = SimpleNamespace(**{**vars(subprocess), "Popen": start})
        for module in ("gpu_check.jobs.launch", "gpu_check.parts.one_process", "gpu_check.parts.stuck_kernel"):
            monkeypatch.setattr(importlib.import_module(module), "subprocess", warmly)
        monkeypatch.setenv("GPU_CHECK_REHEARSAL", "1")
        for name, value in part.environ.items():
            monkeypatch.setenv(name, value)
        module = importlib.import_module(f"gpu_check.parts.{part.module}")
        return list(module.run(outcome.Context(tmp_path, rehearse=True), *part.words))

    return run


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "part",
    [each for each in PARTS if each.name not in (*NOT_ON_A_LAZY_DEVICE, *ON_LAZY_TORCH)],
    ids=lambda part: part.name,
)
def test_a_part_runs_to_its_end_on_a_lazy_device(rehearsed: Callable[[Part], list[Any]], part: Part) -> None:
    """Everything is right there. How long things take is not judged: the machine may be busy. Of two ranks that share a
    device, the verdict is on just that."""
    found = rehearsed(part)
    judged = [each for each in found if part.module != "two_ranks" or each.check != "verdict"]
    assert judged and [each for each in judged if each.status not in ("ok", "info")] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_LAZY_TORCH)
def test_the_events_run_to_their_end_on_a_lazy_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_check import lab, outcome
    from gpu_check.parts import events

    (part,) = (each for each in PARTS if each.name == name)
    for variable, value in part.environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(lab, "MS", 0.003)
    monkeypatch.setattr(lab, "STEPS", 5)
    monkeypatch.setattr(lab, "WARM_UP_SECONDS", 0.2)
    monkeypatch.setattr(events, "TOLERANCE", 0.02)  # threads take their turns later than a GPU's streams: of 30 ms
    monkeypatch.setattr(outcome, "DEVICE_FILES", ("/",))
    monkeypatch.setitem(sys.modules, "torch", lazy_torch(LazyDevice(clock_offset=-(10**15))))
    found = list(events.run(outcome.Context(tmp_path)))
    assert len(found) == 15 and {each.status for each in found} == {"ok"}, found
