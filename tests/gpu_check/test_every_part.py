"""Each part of gpu-check, run to its end without a GPU: on a lazy device in the GPU's place; and killed on its way."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.warm import Warm, WarmProcess

sys.path.append(str(REPOSITORY / "scripts"))  # the parameters are its parts

from gpu_check.plan import PARTS, Part

pytestmark = pytest.mark.apart

NOT_ON_A_LAZY_DEVICE = {
    "facts": "it asks nvidia-smi and lspci: test_on_stand_in_gpus.py",
    "nvml": "it compares NVML with nvidia-smi, and a lazy device has neither: test_on_stand_in_gpus.py",
    "healthcheck": "the probes read NVML, the PCI tree and the kernel's log: test_on_stand_in_gpus.py",
    "active": "it multiplies matrices, and a lazy device computes nothing: test_on_stand_in_gpus.py",
    "no-set-device": "torch's tensors are on one CPU, and not on two devices: test_on_stand_in_gpus.py",
    "nccl-behind": "gloo has neither RAS nor NCCL's dumps",
}
"""The parts that cannot run on a lazy device, and why."""

IN_DEEPSPEED = ("zero",)


def test_each_part_that_cannot_run_exists() -> None:
    names = {part.name for part in PARTS}
    assert {*NOT_ON_A_LAZY_DEVICE, *IN_DEEPSPEED} <= names


def test_every_file_of_parts_is_run_by_a_test() -> None:
    """The part that nothing runs without a GPU has ranks of NCCL, as others have that run."""
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

        def start(command: Sequence[str], env: Mapping[str, str], **how: Any) -> WarmProcess | subprocess.Popen[Any]:
            """A warm process has pipes of its own: what prints into a file is started as it is."""
            is_piped = how.get("stdout", subprocess.PIPE) == subprocess.PIPE
            return warm.start(command[1:], env) if is_piped else subprocess.Popen(command, env=env, **how)

        warmly = SimpleNamespace(**{**vars(subprocess), "Popen": start})
        monkeypatch.setattr(importlib.import_module("gpu_check.jobs.launch"), "subprocess", warmly)
        monkeypatch.setenv("GPU_CHECK_REHEARSAL", "1")
        module = importlib.import_module(f"gpu_check.parts.{part.module}")
        return list(module.run(outcome.Context(tmp_path, rehearse=True), *part.words))

    return run


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "part",
    [each for each in PARTS if each.name not in NOT_ON_A_LAZY_DEVICE],
    ids=lambda part: part.name,
)
def test_a_part_runs_to_its_end_on_a_lazy_device(rehearsed: Callable[[Part], list[Any]], part: Part) -> None:
    """Everything is right there. How long things take is not judged: the machine may be busy."""
    found = rehearsed(part)
    assert found and [each for each in found if each.status not in ("ok", "info")] == []
