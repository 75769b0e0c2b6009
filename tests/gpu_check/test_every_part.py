"""Each part of gpu-check, run to its end without a GPU: on a lazy device in the GPU's place; and killed on its way."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
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
    "faults": "it reads NVML: test_on_stand_in_gpus.py, and what it makes of that, test_judging.py",
    "healthcheck": "the probes read NVML, the PCI tree and the kernel's log: test_on_stand_in_gpus.py",
    "active": "it multiplies matrices, and a lazy device computes nothing: test_on_stand_in_gpus.py",
    "graph": "a lazy device captures a mark, and no operations that a replay would repeat",
    "compile": "torch compiles for CUDA, or not at all",
    "no-set-device": "torch's tensors are on one CPU, and not on two devices: test_on_stand_in_gpus.py",
}
"""The parts that cannot run on a lazy device, and why."""

IN_DEEPSPEED = ("zero", "pipeline")
NEEDS_NO_TRAINING = ("versions", "calls", "tune-nccl")


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


SLOW_PART = """
import subprocess, sys, time
from gpu_check.ending import end_with_parent
from gpu_check.outcome import judged
def run(context):
    yield judged('begins', True, 'well')
    words = 'import time, gpu_check.ending as it; it.end_with_parent(); time.sleep(600)'
    child = subprocess.Popen([sys.executable, '-c', words])
    (context.out / 'pids').write_text(f'{__import__("os").getpid()} {child.pid}')
    time.sleep(600)
"""


@pytest.mark.slow
def test_what_was_done_is_kept_where_it_is_killed_in_its_third_part(tmp_path: Path) -> None:
    """SIGKILL of gpu-check alone: document, table and archive are whole, and nothing that it started goes on."""
    package = tmp_path / "parts"
    package.mkdir()
    (package / "quick.py").write_text(
        "from gpu_check.outcome import judged\ndef run(context):\n    yield judged('first', True, 'well')\n"
    )
    (package / "slow.py").write_text(SLOW_PART)
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(0, {str(REPOSITORY / 'scripts')!r})\n"
        f"import gpu_check.parts\ngpu_check.parts.__path__.append({str(package)!r})\n"
        "import gpu_check.plan as plan\n"
        "quick = [plan.Part(name, 'quick', 60, 1) for name in ('one', 'two')]\n"
        "plan.PARTS = (*quick, plan.Part('three', 'slow', 60, 1), plan.Part('four', 'quick', 60, 1))\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, str(REPOSITORY / "scripts" / "gpu-check"), "--out", str(out)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, stderr=subprocess.PIPE)
    pids = out / "three" / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    document = json.loads((out / "gpu-check.json").read_text())
    assert [part["part"] for part in document["parts"]] == ["one", "two"] and document["exit_status"] == 0
    assert [line.split()[:2] for line in (out / "table.txt").read_text().splitlines()[1:]] == [
        ["one", "ok"],
        ["two", "ok"],
    ]
    with tarfile.open(out / "gpu-check.tar.gz") as archive:
        assert {"gpu-check/one/outcomes.json", "gpu-check/two/outcomes.json"} <= set(archive.getnames())
    assert json.loads((out / "three" / "outcomes.json").read_text())["outcomes"][0][0] == "begins"
    wait_until(lambda: not any(is_running(pid) for pid in pids.read_text().split()))


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
