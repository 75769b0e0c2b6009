"""The gate as a process of its own, with the real pynvml and an NVML library built for the test (nvml_fake.c).

A mount namespace puts the GPUs in the place of the machine's own PCI devices: nothing outside sees them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.paths import TESTS

NVML_PROBES = [
    "gpu_driver", "gpu_count", "gpu_lost", "gpu_ecc", "gpu_rows", "gpu_throttle", "gpu_temperature", "gpu_clocks",
    "gpu_persistence", "gpu_busy", "nvlink", "nvlink_errors", "fabric_manager", "fabric", "gpu_p2p",
]  # fmt: skip
SKIPPED_WHEN_HEALTHY = frozenset({"gpu_busy", "fabric_manager"})  # no prolog, no NVSwitch in the PCI tree

_SOURCE = TESTS / "support" / "nvml_fake.c"
_UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
_MOUNT = 'mount --bind "$1" /sys/bus/pci/devices && shift && exec "$@"'


class Outcome(NamedTuple):
    status: int
    report: dict[str, Any]
    seconds: float

    @property
    def verdicts(self) -> dict[str, str]:
        return {probe["name"]: probe["verdict"] for probe in self.report["probes"]}

    @property
    def reasons(self) -> dict[str, str]:
        return {probe["name"]: probe["reason"] for probe in self.report["probes"]}

    @property
    def found(self) -> list[list[str]]:
        return [[found["code"], found["severity"], found["device"]] for found in self.report["findings"]]


def build_library(folder: Path, *flags: str) -> Path:
    """Compiles nvml_fake.c to a libnvidia-ml.so.1 in `folder`, which is created."""
    folder.mkdir()
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    try:
        subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(_SOURCE)], check=True)
        subprocess.run([*_UNSHARE, "true"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs gcc and mount namespaces: {error}")
    return folder


class Gate:
    """Runs the gate on a machine with eight GPUs in its PCI tree. `folder` is the test's own."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.state = folder / "s"
        self._scenario = folder / "scenario"
        self._library = library
        self._bus = folder / "pci"
        for index in range(8):
            device = self._bus / f"0000:{0x10 + index:02x}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")

    def __call__(
        self,
        scenario: str,
        *words: str,
        library: Path | None = None,
        probes: list[str] = NVML_PROBES,
        python_path: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> Outcome:
        """`scenario`: what the library answers (see nvml_fake.c); `words`: arguments of the gate; `library`: the folder
        of another one; `python_path`: a folder that Python searches first."""
        only = [word for probe in probes for word in ("--only", probe)]
        command = [sys.executable, "-m", "laggard", "healthcheck", "--format", "json", *only, *words]
        own = {
            "LD_LIBRARY_PATH": str(library or self._library),
            **({"PYTHONPATH": str(python_path)} if python_path else {}),
            **(environ or {}),
        }
        started = time.monotonic()
        done = self.run(scenario, command, own)
        assert done.stdout, done.stderr
        return Outcome(done.returncode, json.loads(done.stdout), time.monotonic() - started)

    def run(
        self, scenario: str, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs any program on that machine."""
        self._scenario.write_text(scenario)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "NVIDIA_"))}
        own = {
            "LD_LIBRARY_PATH": str(self._library),
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVML_FAKE": str(self._scenario),
            "LAGGARD_STATE_DIR": str(self.state),
        }
        return subprocess.run(
            [*_UNSHARE, "sh", "-c", _MOUNT, "sh", str(self._bus), *command],
            env=inherited | own | dict(environ or {}),
            capture_output=True,
            text=True,
        )
