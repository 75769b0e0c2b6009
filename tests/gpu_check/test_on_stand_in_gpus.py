"""The parts of gpu-check that a lazy device cannot stand in for: those that read NVML, run to their end on a machine
whose NVML and PCI tree are the tests' own, and the one that takes two GPUs, on ranks that ended well."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.nvml_gate import Gate, build_library
from support.paths import REPOSITORY

READS = {
    "facts": ("smi.xml", "topology.txt", "dmesg.txt", "record.txt"),
    "nvml": ("calls", "driver", "GPU 7 (0000:17:00.0), not read", "temperature margins", "fields in one call"),
    "healthcheck": ("healthcheck", "gpu_count", "gpu_ecc", "gpu_throttle"),
    "active": ("healthcheck", "active_matmul", "active_memory", "active_copy"),
}
"""By the part, some of what it has to tell of."""


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.parametrize("part", READS)
def test_a_part_that_reads_nvml_runs_to_its_end(tmp_path: Path, part: str) -> None:
    """What the active probes would load is not there: they say so, and that judges nothing."""
    gate, out = Gate(tmp_path, build_library(tmp_path / "library")), tmp_path / "out"
    script = str(REPOSITORY / "scripts" / "gpu-check")
    done = gate.run("count 8\n", [sys.executable, script, "--out", str(out), "--part", part])
    (found,) = json.loads((out / "gpu-check.json").read_text())["parts"]
    assert (found["part"], found["not_run"]) == (part, None), done.stdout + done.stderr
    assert set(READS[part]) <= {each["check"] for each in found["outcomes"]}, found
    assert {each["status"] for each in found["outcomes"]} <= {"ok", "info"}, found


@pytest.mark.parametrize("gpus, text", [(0, "no devices to set"), (1, "needs two GPUs, and here is one")])
def test_the_part_for_two_gpus_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, text: str
) -> None:
    from gpu_check import outcome
    from gpu_check.parts import no_set_device

    monkeypatch.setattr(no_set_device, "torch_on_gpu", lambda: _torch(gpus))
    with pytest.raises(outcome.CannotRun, match=text):
        list(no_set_device.run(outcome.Context(tmp_path, rehearse=not gpus)))


def test_the_part_for_two_gpus_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_check import outcome
    from gpu_check.jobs.launch import Rank, Recorded
    from gpu_check.parts import no_set_device

    asked = []

    def ran(words: list[str], size: int, seconds: float, hooked_into: Path | None) -> list[Rank]:
        asked.append((words[0], size, hooked_into is not None))
        return [Rank(0, {"forward_ms": 10.2, "gpu0_used_mib": 900}, "") for _ in range(size)]

    def recorded(folder: Path) -> list[Recorded]:
        clocks = Counter(device=8)
        return [Recorded(rank, f"GPU-{rank}", 30, 0, 0, clocks, clocks, {"forward": 10.0}) for rank in range(2)]

    monkeypatch.setattr(no_set_device, "torch_on_gpu", lambda: _torch(2))
    monkeypatch.setattr(no_set_device, "run_ranks", ran)
    monkeypatch.setattr(no_set_device, "read_recorded", recorded)
    found = list(no_set_device.run(outcome.Context(tmp_path)))
    assert asked == [("no_set_device", 2, False), ("no_set_device", 2, True)]
    assert len(found) == 5 and {each.status for each in found} == {"ok"}, found


def _torch(gpus: int) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: gpus))
