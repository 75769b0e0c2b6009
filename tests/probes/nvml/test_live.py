"""The gate with the real pynvml and an NVML library built for the test, as a process of its own.

A mount namespace puts the GPUs in the place of the machine's own PCI devices: nothing outside sees them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.paths import TESTS

SOURCE = TESTS / "support" / "nvml_fake.c"
NVML_PROBES = [
    *("gpu_driver", "gpu_count", "gpu_lost", "gpu_ecc", "gpu_rows", "gpu_throttle", "gpu_temperature", "gpu_clocks"),
    *("gpu_persistence", "gpu_busy", "nvlink", "nvlink_errors", "fabric_manager", "fabric", "gpu_p2p"),
]
GENEROUS_SECONDS = 4.0  # beyond the deadline, on a busy machine

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


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


Gate = Callable[..., Outcome]


def build(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    try:
        subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
        subprocess.run([*UNSHARE, "true"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs gcc and mount namespaces: {error}")
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml") / "new")


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml") / "old", "-DOLD_DRIVER")


@pytest.fixture
def gate(tmp_path: Path, library: Path) -> Iterator[Gate]:
    bus = tmp_path / "pci"
    for index in range(8):
        device = bus / f"0000:{0x10 + index:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
    scenario = tmp_path / "scenario"

    def run(text: str, *words: str, folder: Path = library, probes: list[str] = NVML_PROBES) -> Outcome:
        scenario.write_text(text)
        only = [word for probe in probes for word in ("--only", probe)]
        script = 'mount --bind "$1" /sys/bus/pci/devices && shift && exec "$@"'
        command = [sys.executable, "-m", "laggard", "healthcheck", "--format", "json", *only, *words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "NVIDIA_"))}
        environ |= {
            "LD_LIBRARY_PATH": str(folder),
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVML_FAKE": str(scenario),
            "LAGGARD_STATE_DIR": str(tmp_path / "s"),
        }
        started = time.monotonic()
        done = subprocess.run(
            [*UNSHARE, "sh", "-c", script, "sh", str(bus), *command], env=environ, capture_output=True, text=True
        )
        assert done.stdout, done.stderr
        return Outcome(done.returncode, json.loads(done.stdout), time.monotonic() - started)

    yield run


def test_eight_healthy_gpus(gate: Gate) -> None:
    outcome = gate("")
    assert outcome.found == [] and outcome.status == 0, outcome.reasons
    skipped = {"gpu_busy", "fabric_manager"}  # no prolog, no NVSwitch in the PCI tree
    assert outcome.verdicts == {name: "skipped" if name in skipped else "ok" for name in NVML_PROBES}, outcome.reasons
    assert outcome.report["facts"]["gpu_driver"] == {"driver_version": "570.124.06", "gpus": 8}


def test_seven_of_eight(gate: Gate) -> None:
    outcome = gate("count 7\n")
    assert (outcome.status, outcome.found) == (1, [["GPU_MISSING", "critical", "GPU 0000:17:00.0"]]), outcome.reasons


def test_a_gpu_that_falls_off_between_two_calls(gate: Gate) -> None:
    """Readings before that count; every reading after it is unknown, and none is ok."""
    outcome = gate("3.lost_after 6\n")
    assert outcome.status == 1
    assert outcome.found == [["GPU_LOST", "critical", "GPU 3 (0000:13:00.0)"]]
    for probe in ("gpu_ecc", "gpu_rows", "gpu_temperature", "nvlink", "fabric"):
        assert outcome.verdicts[probe] == "unknown" and "GPU 3: GPU_IS_LOST" in outcome.reasons[probe], outcome.reasons


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("init error 9\n", "DRIVER_NOT_LOADED: the driver is not loaded"),
        ("init error 18\n", "LIB_RM_VERSION_MISMATCH"),
        ("init error 999\n", "NVML: UNKNOWN"),
        ("count 0\n", "NVML lists no GPU"),
    ],
)
def test_nvml_that_cannot_start_is_unknown(scenario: str, reason: str, gate: Gate) -> None:
    outcome = gate(scenario, probes=["gpu_ecc", "nvlink"])
    assert outcome.status == 2 and outcome.found == []
    assert all(reason in text for text in outcome.reasons.values()), outcome.reasons


def test_without_the_library_it_is_unknown(gate: Gate, tmp_path: Path) -> None:
    outcome = gate("", folder=tmp_path, probes=["gpu_ecc"])
    assert outcome.status == 2 and "libnvidia-ml.so.1 is not to be found" in outcome.reasons["gpu_ecc"]


def test_an_old_driver(gate: Gate, old_library: Path) -> None:
    """What it supports is judged; what it lacks is unknown, except where laggard can do without it."""
    outcome = gate("", folder=old_library)
    assert outcome.found == [] and outcome.status == 2
    unknown = {name for name, verdict in outcome.verdicts.items() if verdict == "unknown"}
    assert unknown == {"gpu_rows", "fabric"}, outcome.reasons
    assert "FUNCTION_NOT_FOUND: the library is too old for it" in outcome.reasons["gpu_rows"]


@pytest.mark.parametrize(
    ("scenario", "found"),
    [
        ("5.ecc_volatile 2\n", ["GPU_ECC_UNCORRECTED", "critical", "GPU 5 (0000:15:00.0)"]),
        ("1.rows_pending 1\n", ["GPU_ROW_REMAP_PENDING", "warning", "GPU 1 (0000:11:00.0)"]),
        ("1.rows_failed 1\n", ["GPU_ROW_REMAP_FAILED", "critical", "GPU 1 (0000:11:00.0)"]),
        ("2.reasons 72\n", ["GPU_THROTTLED", "warning", "GPU 2 (0000:12:00.0)"]),
        ("0.temperature 90\n", ["GPU_TOO_HOT", "critical", "GPU 0 (0000:10:00.0)"]),
        ("0.margin -3\n", ["GPU_TOO_HOT", "critical", "GPU 0 (0000:10:00.0)"]),
        ("6.application_sm 1200\n", ["GPU_CLOCKS_LOW", "critical", "GPU 6 (0000:16:00.0)"]),
        ("6.power_limit 400000\n", ["GPU_CLOCKS_LOW", "critical", "GPU 6 (0000:16:00.0)"]),
        ("persistence 0\n", ["GPU_PERSISTENCE_OFF", "warning", "GPUs"]),
        ("4.link7 0\n", ["NVLINK_DOWN", "critical", "GPU 4 (0000:14:00.0)"]),
        ("4.fabric_state 2\n", ["FABRIC_NOT_READY", "critical", "GPU 4 (0000:14:00.0)"]),
        ("4.fabric_status 999\n", ["FABRIC_NOT_READY", "critical", "GPU 4 (0000:14:00.0)"]),
        ("4.p2p5 5\n", ["P2P_DISABLED", "critical", "GPU 4 (0000:14:00.0)"]),
        ("2.field230 2\n", ["GPU_LOST", "critical", "GPU 2 (0000:12:00.0)"]),
    ],
)
def test_each_fault_through_the_real_pynvml(scenario: str, found: list[str], gate: Gate) -> None:
    outcome = gate(scenario)
    assert outcome.found == [found], outcome.reasons
    assert outcome.status == (1 if found[1] == "critical" else 0)


def test_throttling_between_two_runs(gate: Gate, tmp_path: Path) -> None:
    """The first run has nothing to compare with; for the second, the first snapshot is made an hour old."""
    assert gate("").found == []
    store = tmp_path / "s" / "last_look.json"
    snapshots = json.loads(store.read_text())
    for snapshot in snapshots["probes"]["gpu_throttle"]:
        snapshot["uptime"] -= 3600 if snapshot["uptime"] > 3600 else snapshot["uptime"] * 0.9
    store.write_text(json.dumps(snapshots))
    seconds = float(Path("/proc/uptime").read_text().split()[0]) - snapshots["probes"]["gpu_throttle"][0]["uptime"]
    outcome = gate(f"3.field270 {int(seconds * 0.5e9)}\n")
    assert outcome.found == [["GPU_THROTTLED", "critical", "GPU 3 (0000:13:00.0)"]], outcome.report["facts"]


def test_a_process_on_a_gpu_counts_in_a_prolog(gate: Gate) -> None:
    assert gate("2.process 4242\n").found == []
    outcome = gate("2.process 4242\n", "--profile", "prolog")
    assert ["GPU_BUSY", "warning", "GPU 2 (0000:12:00.0)"] in outcome.found


@pytest.mark.slow
def test_a_hung_call_is_reported_as_hung(gate: Gate) -> None:
    """The call ignores signals. It is given up after its own time limit, not at the profile's deadline."""
    outcome = gate("3.ecc_volatile hang\n")
    (found,) = outcome.report["findings"]
    assert (found["code"], found["severity"]) == ("GPU_DRIVER_HUNG", "critical") and outcome.status == 1
    assert found["evidence"]["call"] == "ecc_volatile of GPU 3" and found["evidence"]["process_state"] == "S"
    assert 3.0 <= found["evidence"]["seconds"] <= outcome.seconds < 3.0 + GENEROUS_SECONDS
    assert {outcome.verdicts[name] for name in NVML_PROBES[1:]} == {"unknown"}
    assert all("ecc_volatile of GPU 3" in outcome.reasons[name] for name in NVML_PROBES[1:]), outcome.reasons
    pid = found["evidence"]["process"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_slow_start_is_no_hang(gate: Gate) -> None:
    """Without persistence mode eight GPUs may take half a minute to start. A deadline before that means unknown."""
    outcome = gate("init sleep 60\n", "--deadline", "1.5", probes=["gpu_driver", "gpu_ecc"])
    assert outcome.status == 2 and outcome.found == []
    assert "nvmlInit may take 27 s" in outcome.reasons["gpu_driver"] and outcome.seconds < 1.5 + GENEROUS_SECONDS
    assert gate("init sleep 1\n", probes=["gpu_ecc"]).status == 0
