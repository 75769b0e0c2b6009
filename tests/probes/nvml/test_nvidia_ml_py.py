"""The gate with every version of nvidia-ml-py that laggard takes: what an old one lacks costs one field, not a probe.

The versions are downloaded, as wheels of some 50 KB; without a package index these tests are skipped.
"""

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.nvml_gate import NVML_PROBES, SKIPPED_WHEN_HEALTHY, Gate


def unpacked_wheel(package: str, version: str) -> Path:
    """A folder for PYTHONPATH with this version of a package that is pure Python and needs nothing. It is downloaded
    once; where the package index cannot be reached the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "laggard-tests"
    folder = cache / f"{package}-{version}"
    if folder.exists():
        return folder
    wheels = cache / f"wheels-{os.getpid()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(wheels), f"{package}=={version}"], capture_output=True, text=True)
    found = list(wheels.glob(f"*-{version}-*.whl"))
    if not found:
        pytest.skip(f"cannot download {package} {version}: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(wheels / version)
    with contextlib.suppress(OSError):  # another test process was faster
        (wheels / version).rename(folder)
    return folder


pytestmark = pytest.mark.slow

VERSIONS = ["11.525.84", "12.535.77", "12.535.161", "12.550.89", "12.570.86", "12.575.51", "13.580.65"]
HEALTHY = {name: "skipped" if name in SKIPPED_WHEN_HEALTHY else "ok" for name in NVML_PROBES}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def python_path(version: str) -> Path:
    return unpacked_wheel("nvidia-ml-py", version)


def test_each_version_judges_healthy_gpus(gate: Gate, python_path: Path) -> None:
    outcome = gate("", python_path=python_path)
    assert outcome.found == [] and outcome.status == 0, outcome.reasons
    assert outcome.verdicts == HEALTHY, outcome.reasons


def test_each_version_names_faulty_gpus(gate: Gate, python_path: Path) -> None:
    """The last ones by structures and fields that the versions differ in."""
    scenario = "1.rows_failed 1\n2.reasons 64\n3.ecc_volatile 2\n3.field230 1\n4.fabric_status 999\n5.link7 0\n"
    outcome = gate(scenario, python_path=python_path)
    assert outcome.found == [
        ["GPU_LOST", "critical", "GPU 3 (0000:13:00.0)"],
        ["GPU_ECC_UNCORRECTED", "critical", "GPU 3 (0000:13:00.0)"],
        ["GPU_ROW_REMAP_FAILED", "critical", "GPU 1 (0000:11:00.0)"],
        ["GPU_THROTTLED", "warning", "GPU 2 (0000:12:00.0)"],
        ["NVLINK_DOWN", "critical", "GPU 5 (0000:15:00.0)"],
        ["FABRIC_NOT_READY", "critical", "GPU 4 (0000:14:00.0)"],
    ], outcome.reasons


def test_each_version_reads_the_fabrics_health_where_the_driver_has_it(
    gate: Gate, version: str, python_path: Path
) -> None:
    """nvmlDeviceGetGpuFabricInfoV came with 12.550; before that a GPU's health is not known."""
    outcome = gate("4.fabric_mask 169\n", python_path=python_path, probes=["fabric"])  # 0xA9: reduced bandwidth
    expected = [["FABRIC_NOT_READY", "critical", "GPU 4 (0000:14:00.0)"]]
    assert outcome.found == ([] if version.startswith(("11.", "12.535")) else expected)


def test_the_version_before_the_first_one_is_unknown_and_not_ok(gate: Gate) -> None:
    """pyproject.toml asks for 11.525.84: older ones have no call for the fabric's state."""
    outcome = gate("", python_path=unpacked_wheel("nvidia-ml-py", "11.515.75"))
    assert outcome.found == [] and outcome.status == 2
    assert {name for name, verdict in outcome.verdicts.items() if verdict == "unknown"} == {"fabric"}, outcome.reasons
    assert "this nvidia-ml-py is too old for it: upgrade it" in outcome.reasons["fabric"]
