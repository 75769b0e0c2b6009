"""A driver that stays away, and what CUDA needs beside it; GPUs in MIG mode where whole ones are asked for."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.judge import judge
from support.materialise import change_json

from laggard import wire
from laggard.model import Finding
from laggard.probes.choose import choose_probes
from laggard.probes.gpu.count import CountThresholds
from laggard.probes.host.counter_history import CounterSnapshot
from laggard.probes.profiles import PROFILES
from laggard.probes.runner.state_file import RECORDED_PATH, HistoryFile

Copy = Callable[[str], Path]

BOOT = "3f0a5c1e-6d6b-4f0e-9c55-0c6f2f1f7a10"
UPTIME = 864000.0


def findings(machine: Path, name: str = "gpu_driver") -> Sequence[Finding]:
    return judge(machine, choose_probes(PROFILES["full"], (name,), (), "full")).findings


def looked(machine: Path, *answers: tuple[float, int]) -> None:
    """Earlier looks: how many seconds ago, and whether the driver answered."""
    shots = tuple(CounterSnapshot(UPTIME - ago, {"answers": it}) for ago, it in answers)
    place = machine / RECORDED_PATH.lstrip("/")
    place.write_bytes(wire.encode(HistoryFile(BOOT, {"gpu_driver": shots})))


@pytest.mark.parametrize("name", ["gpu_nvml_mismatch", "gpu_driver_not_built"])
def test_a_driver_is_given_the_time_of_an_upgrade(name: str, copy_of: Copy) -> None:
    machine = copy_of(name)
    (machine / "proc/uptime").unlink()
    (machine / "proc/uptime").write_text(f"{UPTIME:.2f} 0.00\n")
    looked(machine, (1200.0, 1), (60.0, 0))
    assert findings(machine) == ()
    looked(machine, (7200.0, 1), (3600.0, 0), (60.0, 0))
    (found,) = findings(machine)
    assert (found.code, found.severity.value) == ("GPU_DRIVER_FAILED", "critical")


@pytest.mark.parametrize("name", ["gpu_nvml_mismatch", "gpu_driver_not_built"])
def test_a_container_has_a_library_of_its_own(name: str, copy_of: Copy) -> None:
    machine = copy_of(name)
    (machine / ".dockerenv").write_text("")
    (machine / "proc/2/comm").unlink()
    assert findings(machine) == ()


def test_a_driver_that_has_its_gpus_is_not_away(copy_of: Copy) -> None:
    """NVML says the same where a unit's device policy keeps it from /dev/nvidiactl."""
    machine = copy_of("hgx_h100_gpus")
    change_json(machine / "laggard/nvml.json", {"gpus": [], "error": "DRIVER_NOT_LOADED"})
    assert findings(machine) == ()


def test_amd_gpus_without_their_driver(copy_of: Copy) -> None:
    machine = copy_of("mi300x_gpus")
    assert findings(machine) == ()
    loaded = machine / "sys/bus/pci/drivers/amdgpu"
    for link in loaded.iterdir():
        link.unlink()
    loaded.rmdir()
    (found,) = findings(machine)
    assert (found.code, found.device) == ("GPU_DRIVER_FAILED", "amdgpu driver")


def test_a_display_card_needs_no_device_file(copy_of: Copy) -> None:
    machine = copy_of("hgx_h100")
    change_json(machine / "laggard/nvml.json", {"gpus/7/name": "NVIDIA T1000", "gpus/7/minor": 77})
    assert findings(machine) == ()
    change_json(machine / "laggard/nvml.json", {"gpus/6/minor": 66})
    assert [found.device for found in findings(machine)] == ["/dev/nvidia66"]


def test_files_in_dev_that_a_recording_lacks_are_no_fault(copy_of: Copy) -> None:
    machine = copy_of("hgx_h100")
    for path in machine.glob("dev/nvidia*"):
        if path.is_file():
            path.unlink()
    assert findings(machine) == ()


def whole(machine: Path, expected: int | None) -> list[str]:
    (probe,) = choose_probes(PROFILES["full"], ("gpu_count",), (), "full")
    counted = probe._replace(thresholds=CountThresholds(expected=expected))
    return [f"{found.severity.value} {found.device}" for found in judge(machine, [counted]).findings]


def test_a_gpu_left_in_mig_mode_is_missing_where_whole_ones_are_asked_for(copy_of: Copy) -> None:
    machine = copy_of("hgx_h100_gpus")
    change_json(machine / "laggard/nvml.json", {"gpus/7/mig": True})
    assert whole(machine, 8) == ["critical GPU 0000:db:00.0"]
    assert whole(machine, 7) == whole(machine, None) == []
    change_json(machine / "laggard/nvml.json", {f"gpus/{index}/mig": True for index in range(8)})
    assert whole(machine, 8) == [], "a node whose GPUs are all divided is divided on purpose"
