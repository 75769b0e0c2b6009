"""The gate with the real pynvml and an NVML library built for the test, as a process of its own."""

import json
import time
from pathlib import Path

import pytest
from support.nvml_gate import NVML_PROBES, SKIPPED_WHEN_HEALTHY, Gate
from support.rows import rows

from laggard.kit.processes import read_stat
from laggard.probes.gpu.model.pci_devices import container_of
from laggard.probes.host.host import Host

UNDIVIDED = "warning" if container_of(Host("/")) else "critical"
"""The severity of MIG mode without a MIG device: in a container somebody may divide the GPU when a pod asks."""

pytestmark = pytest.mark.slow  # processes with a library that is built for them

GENEROUS_SECONDS = 50.0  # beyond the deadline, on a busy machine


def _wait_for_the_end_of(pid: int) -> None:
    """The killed process may outlive its parent for a moment."""
    until = time.monotonic() + GENEROUS_SECONDS
    while (stat := read_stat(pid)) is not None and not stat.has_ended:
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.02)


@pytest.mark.spine
def test_eight_healthy_gpus(gate: Gate) -> None:
    outcome = gate("")
    assert outcome.found == [] and outcome.status == 0, outcome.reasons
    expected = {name: "skipped" if name in SKIPPED_WHEN_HEALTHY else "ok" for name in NVML_PROBES}
    assert outcome.verdicts == expected, outcome.reasons
    assert outcome.report["facts"]["gpu_driver"].items() >= {"driver_version": "570.124.06", "gpus": 8}.items()


@pytest.mark.spine
def test_a_gpu_that_falls_off_between_two_calls(gate: Gate) -> None:
    """Readings before that count; every reading after it is unknown, and none is ok."""
    outcome = gate("3.lost_after 6\n")
    assert outcome.status == 1
    assert outcome.found == [["GPU_LOST", "critical", "GPU 3 (0000:13:00.0)"]]
    for probe in ("gpu_ecc", "gpu_rows", "gpu_temperature", "nvlink", "fabric"):
        assert outcome.verdicts[probe] == "unknown" and "GPU 3: GPU_IS_LOST" in outcome.reasons[probe], outcome.reasons


def test_without_the_library_it_is_unknown(gate: Gate, tmp_path: Path) -> None:
    outcome = gate("", library=tmp_path, probes=["gpu_ecc"])
    assert outcome.status == 2 and "libnvidia-ml.so.1 is not to be found" in outcome.reasons["gpu_ecc"]


def test_an_old_driver(gate: Gate, old_library: Path) -> None:
    """What it supports is judged; what it lacks is unknown, except where laggard can do without it."""
    outcome = gate("", library=old_library)
    assert outcome.found == [] and outcome.status == 2
    unknown = {name for name, verdict in outcome.verdicts.items() if verdict == "unknown"}
    assert unknown == {"gpu_rows", "fabric"}, outcome.reasons
    assert "FUNCTION_NOT_FOUND: the library is too old for it" in outcome.reasons["gpu_rows"]


@rows("probes/nvml_faults")
def test_each_fault_through_the_real_pynvml(scenario: str, found: tuple[str, ...], gate: Gate) -> None:
    outcome, due = gate(scenario), [each.format(undivided=UNDIVIDED) for each in found]
    assert outcome.found == [due], outcome.reasons
    assert outcome.status == (1 if due[1] == "critical" else 0)


def test_blackwells_counter_of_recoveries_is_read(gate: Gate) -> None:
    """Blackwell has none of the fields 161 to 163, nor their totals."""
    fields = "".join(f"field{field} error 3\n" for field in (161, 162, 163, 52, 59, 38))
    assert gate(fields, probes=["nvlink_errors"]).verdicts == {"nvlink_errors": "ok"}
    store = gate.state / "last_look.json"
    snapshots = json.loads(store.read_text())
    for snapshot in snapshots["probes"]["nvlink_errors"]:
        snapshot["uptime"] -= min(600.0, snapshot["uptime"] * 0.9)
    store.write_text(json.dumps(snapshots))
    outcome = gate(f"{fields}1.field215.7 9\n", probes=["nvlink_errors"])
    assert outcome.found == [["NVLINK_ERRORS", "warning", "GPU 1 (0000:11:00.0)"]], outcome.report
    assert outcome.report["findings"][0]["evidence"]["since_driver_load_by_link"] == {"7": 9}


@rows("probes/unreadable_nvml")
def test_what_cannot_be_read_is_unknown_and_all_else_stands(
    scenario: str, probes: str, reason: str, gate: Gate
) -> None:
    outcome = gate(scenario)
    assert outcome.found == [], outcome.report["findings"]
    unknown = {name for name, verdict in outcome.verdicts.items() if verdict == "unknown"}
    assert unknown == set(probes.split()), outcome.reasons
    assert all(reason in outcome.reasons[name] for name in unknown)


@rows("probes/no_handle")
def test_a_handle_that_may_not_be_had_accuses_no_gpu(
    scenario: str, environ: dict[str, str], reason: str, gate: Gate
) -> None:
    outcome = gate(scenario, environ=environ)
    assert outcome.found == [] and outcome.status == 2
    assert outcome.verdicts["gpu_lost"] == "unknown" and reason in outcome.reasons["gpu_lost"], outcome.reasons


def test_a_virtual_gpu_is_judged_by_what_it_has(gate: Gate) -> None:
    """In a guest NVML supports little of a vGPU; what is not supported is skipped, and nothing is unknown."""
    calls = ("ecc_volatile", "ecc_aggregate", "rows_pending", "margin", "threshold", "temperature", "persistence")
    calls += ("links", "fabric_state", "fields", "thermal_time", "limit_time", "power_limit", "default_power_limit")
    outcome = gate("".join(f"{call} error 3\n" for call in (*calls, "application_sm", "default_sm", "reasons")))
    assert outcome.found == [] and outcome.status == 0, outcome.reasons
    judged = {"gpu_driver", "gpu_count", "gpu_lost", "gpu_clocks", "gpu_p2p"}
    expected = {name: "ok" if name in judged else "skipped" for name in NVML_PROBES}
    assert outcome.verdicts == expected, outcome.reasons


@pytest.mark.parametrize("gone", ["old_temperature error 26", "temperature_v error 13"])
def test_the_thermometer_is_read_by_drivers_of_before_and_of_later(gone: str, gate: Gate) -> None:
    """A later one may answer nvmlDeviceGetTemperature with DEPRECATED, as 595 does for the application clocks."""
    outcome = gate(f"{gone}\n", probes=["gpu_temperature"])
    assert outcome.status == 0 and outcome.verdicts["gpu_temperature"] == "ok", outcome.reasons


def test_a_call_that_the_driver_no_longer_answers_is_unknown_and_not_skipped(gate: Gate) -> None:
    outcome = gate("temperature error 26\n", probes=["gpu_temperature"])
    assert outcome.status == 2 and outcome.verdicts["gpu_temperature"] == "unknown"
    assert "this laggard is too old for the driver" in outcome.reasons["gpu_temperature"]


@pytest.mark.parametrize(
    ("scenario", "skipped"),
    [
        ("mig 1\nmig_devices 7\nlinks error 3\nprocess error 3\n", {"nvlink", "nvlink_errors", "fabric", "gpu_p2p"}),
        ("3.mig 1\n3.mig_devices 7\n3.links error 3\n3.fabric_state error 3\n3.process error 3\n", set()),
    ],
)
def test_gpus_in_mig_mode_are_no_fault(scenario: str, skipped: set[str], gate: Gate) -> None:
    outcome = gate(scenario)
    assert outcome.found == [] and outcome.status == 0, outcome.reasons
    expected = {name: "skipped" if name in SKIPPED_WHEN_HEALTHY | skipped else "ok" for name in NVML_PROBES}
    assert outcome.verdicts == expected, outcome.reasons


def test_throttling_between_two_runs(gate: Gate) -> None:
    """The first run has nothing to compare with; for the second, the first snapshot is made an hour old."""
    assert gate("").found == []
    store = gate.state / "last_look.json"
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


@pytest.mark.spine
def test_a_hung_call_is_reported_as_hung(gate: Gate) -> None:
    """The call ignores signals. It is given up after its own time limit, not at the profile's deadline."""
    outcome = gate("3.ecc_volatile hang\n")
    (found,) = outcome.report["findings"]
    assert (found["code"], found["severity"]) == ("GPU_DRIVER_HUNG", "critical") and outcome.status == 1
    assert found["evidence"]["call"] == "ecc_volatile of GPU 3" and found["evidence"]["process_state"] == "S"
    assert 8.0 <= found["evidence"]["seconds"] <= outcome.seconds < 8.0 + GENEROUS_SECONDS
    assert {outcome.verdicts[name] for name in NVML_PROBES[1:]} == {"unknown"}
    assert all("ecc_volatile of GPU 3" in outcome.reasons[name] for name in NVML_PROBES[1:]), outcome.reasons
    _wait_for_the_end_of(found["evidence"]["process"])


def test_a_slow_call_at_the_deadline_is_a_warning(gate: Gate) -> None:
    """The driver's locks are held for seconds by a reset of another GPU; a hang shows itself in the next run."""
    for _ in range(9):  # until the call is reached in time: on a busy machine it may take long to come to it
        outcome = gate("3.ecc_volatile hang\n", "--deadline", "7.5")
        if outcome.report["findings"]:
            break
    (found,) = outcome.report["findings"]
    assert (found["code"], found["severity"]) == ("GPU_DRIVER_HUNG", "warning") and outcome.status == 2
    assert 3.0 <= found["evidence"]["seconds"] < 8.0 and found["evidence"]["usual_at_most_seconds"] == 8.0
    assert {outcome.verdicts[name] for name in NVML_PROBES} <= {"unknown"}


def test_a_slow_file_system_is_no_fault_of_the_driver(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("import time; time.sleep(600)\n")
    outcome = gate("", "--deadline", "9.5", python_path=tmp_path)
    assert outcome.found == [] and outcome.status == 2
    assert "importing pynvml may take 60 s" in outcome.reasons["gpu_driver"], outcome.reasons


@rows("probes/damaged_pynvml")
def test_a_damaged_nvidia_ml_py_is_unknown(text: str, reason: str, gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(f"{text}\n")
    outcome = gate("", python_path=tmp_path)
    assert outcome.found == [] and outcome.status == 2
    assert reason in outcome.reasons["gpu_ecc"], outcome.reasons


def test_a_slow_call_that_returns_is_no_hang(gate: Gate) -> None:
    outcome = gate("3.ecc_volatile sleep 4\n")
    assert outcome.found == [] and outcome.status == 0, outcome.reasons


def test_a_slow_start_is_no_hang(gate: Gate) -> None:
    """Without persistence mode the driver starts each GPU when its handle is asked for. A deadline before that means
    unknown."""
    for deadline in (2, 8, 12, 16):  # on a busy machine the call may be reached late
        outcome = gate("init sleep 600\n", "--deadline", str(deadline), probes=["gpu_driver", "gpu_ecc"])
        if "nvmlInit" in outcome.reasons["gpu_driver"]:
            break
    assert outcome.status == 2 and outcome.found == []
    assert "nvmlInit may take 18 s" in outcome.reasons["gpu_driver"] and outcome.seconds < deadline + GENEROUS_SECONDS
    assert gate("init sleep 1\n", probes=["gpu_ecc"]).status == 0


def test_a_gpu_that_nobody_holds_may_take_long_for_its_handle(gate: Gate) -> None:
    """The start of a GPU is in nvmlDeviceGetHandleByIndex: longer than a reading may take, and no fault."""
    outcome = gate("5.handle sleep 9\n", probes=["gpu_driver", "gpu_ecc"])
    assert (outcome.found, outcome.status) == ([], 0), outcome.reasons
    assert outcome.seconds >= 9
