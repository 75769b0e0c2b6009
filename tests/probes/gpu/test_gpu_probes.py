"""The GPU probes on whole recorded machines: GPU_BUSY in a prolog, what is skipped and why, one process for a group."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gpus import nvml
from support.rows import rows

from laggard import wire
from laggard.cli import main
from laggard.model import Finding, Severity, Verdict
from laggard.probes.gpu import temperature as temperature_probe
from laggard.probes.gpu.driver import driver_hung
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Hang, Nvml, encode_nvml
from laggard.probes.probe import GPU, Fact, Probe, ProbeGroup, Thresholds
from laggard.probes.registry import PROBES
from laggard.probes.runner.runner import Runner, run
from laggard.probes.runner.worker import observe

pytestmark = pytest.mark.usefixtures("without_processes")

Machine = Callable[[str], Path]
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def run_gate(root: Path, *words: str) -> dict[str, Any]:
        status = main(["healthcheck", "--host-root", str(root), "--format", "json", *words])
        report = json.loads(capsys.readouterr().out)
        return {"status": status, **report}

    return run_gate


def _copy(source: Path, target: Path, **changes: Any) -> Path:
    """Copies a recorded machine and changes its environment and NVML's answers for GPU 3."""
    shutil.copytree(source, target, symlinks=True)
    answers = nvml()
    answers["gpus"][3].update(changes.pop("gpu_3", {}))
    (target / "laggard/nvml.json").write_text(json.dumps(answers))
    facts = {"laggard_machine": 1, "time": 1.0, "environ": changes.pop("environ", {})}
    (target / "laggard/facts.json").write_text(json.dumps(facts))
    return target


def _without_pci_tree(source: Path, target: Path, **changes: Any) -> Path:
    """As gVisor shows a machine to a container: no PCI devices, and the GPUs in /dev."""
    root = _copy(source, target, **changes)
    shutil.rmtree(root / "sys/bus/pci")
    (root / "dev").mkdir(exist_ok=True)
    for index in range(8):
        (root / f"dev/nvidia{index}").touch()
    return root


def test_gpus_are_judged_where_there_is_no_pci_tree(check: Check, machine: Machine, tmp_path: Path) -> None:
    root = _without_pci_tree(machine("hgx_h100_gpus"), tmp_path / "machine", gpu_3=dict(ecc_volatile=3))
    words = [word for probe in PROBES if probe.group == GPU for word in ("--only", probe.name)]
    report = check(root, *words)
    assert [(each["code"], each["device"]) for each in report["findings"]] == [
        ("GPU_ECC_UNCORRECTED", "GPU 3 (0000:5d:00.0)")
    ], report["findings"]
    verdicts = {each["name"]: each["verdict"] for each in report["probes"]}
    judged = {"gpu_driver", "gpu_lost", "gpu_throttle", "gpu_temperature", "gpu_clocks", "nvlink", "fabric"}
    assert {name: verdicts[name] for name in judged} == dict.fromkeys(judged, "ok"), verdicts
    (count,) = [each for each in report["probes"] if each["name"] == "gpu_count"]
    assert count["verdict"] == "unknown" and "set gpu_count.expected" in count["reason"]


@pytest.mark.parametrize(("expected", "found"), [(8, []), (9, ["GPU_MISSING"])])
def test_gpus_are_counted_by_the_profile_where_there_is_no_pci_tree(
    expected: int, found: list[str], check: Check, machine: Machine, tmp_path: Path
) -> None:
    root = _without_pci_tree(machine("hgx_h100_gpus"), tmp_path / "machine")
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"thresholds: {{gpu_count: {{expected: {expected}}}}}\n")
    report = check(root, "--profile", str(profile), "--only", "gpu_count")
    assert [each["code"] for each in report["findings"]] == found and report["status"] == len(found)


GROUP = ProbeGroup("g", 60.0)
USED = {"processes": [{"pid": 811, "used_bytes": 1 << 30}]}


@pytest.mark.parametrize(
    ("environ", "gpu_3", "words", "found", "verdict"),
    [
        ({"SLURM_JOB_GPUS": "2,3"}, USED, ["--profile", "prolog"], ["critical"], "fail"),
        ({"SLURM_JOB_GPUS": "0-2"}, USED, ["--profile", "prolog"], [], "ok"),  # another job's
        ({}, USED, ["--profile", "prolog"], ["warning"], "ok"),  # nothing says which GPUs are the job's
        ({}, {}, ["--profile", "prolog"], [], "ok"),
        ({"SLURM_JOB_GPUS": "2,3"}, USED, ["--profile", "epilog"], [], "skipped"),
        ({"SLURM_JOB_GPUS": "9"}, {}, ["--profile", "prolog"], [], "unknown"),
        ({"SLURM_JOB_GPUS": "3"}, {**USED, "minor": 7}, ["--profile", "prolog"], [], "unknown"),  # minor, not index
    ],
)
def test_gpu_busy(
    environ: dict[str, str],
    gpu_3: dict[str, Any],
    words: list[str],
    found: list[str],
    verdict: str,
    machine: Machine,
    tmp_path: Path,
    check: Check,
) -> None:
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node", environ=environ, gpu_3=gpu_3)
    (root / "proc/811").mkdir(exist_ok=True)
    (root / "proc/811/status").write_text("Name:\tpython\nUid:\t1007\t1007\t1007\t1007\n")
    (root / "proc/811/cgroup").write_text("0::/user.slice/user-1007.slice/session-4.scope\n")
    report = check(root, "--only", "gpu_busy", *words)
    assert [[it["code"], it["severity"]] for it in report["findings"]] == [["GPU_BUSY", it] for it in found]
    assert report["probes"][0]["verdict"] == verdict, report["probes"]


@pytest.mark.parametrize(
    ("place", "severity"),
    [("", "warning"), ("sys/class/pci_bus/0000:17", "critical"), ("proc/driver/nvidia/gpus/0000:17:00.0", "critical")],
)
def test_an_xid_of_a_gpu_that_was_never_here_is_a_warning(
    place: str, severity: str, machine: Machine, tmp_path: Path, check: Check
) -> None:
    """A GPU that is gone leaves its bus, and the driver's folder."""
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node")
    if place:
        (root / place).mkdir(parents=True)
    log = (root / "laggard/kmsg").read_text()
    (root / "laggard/kmsg").unlink()
    (root / "laggard/kmsg").write_text(
        f"{log}3,9999,863990000000,-;NVRM: Xid (PCI:0000:17:00): 79, pid=7, GPU is off\n"
    )
    report = check(root, "--only", "gpu_xid")
    assert [(it["severity"], it["device"]) for it in report["findings"]] == [(severity, "GPU 0000:17:00.0")]


def _service(root: Path, name: str, uid: int, cgroup: str = "", pid: int = 811, parent: int = 1) -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text(name + "\n")
    (folder / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


@rows("probes/gpu_services")
def test_services_may_use_a_gpu_in_a_prolog_and_their_namesakes_may_not(
    name: str, uid: int | None, cgroup: str, found: bool, machine: Machine, tmp_path: Path, check: Check
) -> None:
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node", environ={"SLURM_JOB_GPUS": "3"}, gpu_3=USED)
    if uid is None:
        (root / "proc/811").mkdir()
        (root / "proc/811/comm").write_text(name + "\n")
    else:
        _service(root, name, uid, cgroup)
    report = check(root, "--only", "gpu_busy", "--profile", "prolog")
    assert [it["code"] for it in report["findings"]] == ["GPU_BUSY"] * found


@pytest.mark.parametrize(("parents_uid", "found"), [(0, []), (1001, ["GPU_BUSY"])])
def test_a_server_of_roots_mps_runs_under_a_users_account(
    parents_uid: int, found: list[str], machine: Machine, tmp_path: Path, check: Check
) -> None:
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node", environ={"SLURM_JOB_GPUS": "3"}, gpu_3=USED)
    _service(root, "nvidia-cuda-mps", 1001, parent=700)
    _service(root, "nvidia-cuda-mps", parents_uid, pid=700)
    report = check(root, "--only", "gpu_busy", "--profile", "prolog")
    assert [it["code"] for it in report["findings"]] == found


@rows("probes/fabric_manager_owners")
def test_a_users_process_is_no_fabric_manager(
    uids: str, program: str | None, severities: tuple[str, ...], machine: Machine, tmp_path: Path, check: Check
) -> None:
    root = tmp_path / "node"
    shutil.copytree(machine("fabric_manager_down"), root, symlinks=True)
    _service(root, "nv-fabricmanage", 0, pid=4100)
    (root / "proc/4100/status").write_text(f"Name:\tnv-fabricmanage\nUid:\t{uids}\n")
    if program:
        (root / "proc/4100/exe").symlink_to(program)
    report = check(root, "--only", "fabric_manager")
    assert tuple(it["severity"] for it in report["findings"]) == severities


@pytest.mark.parametrize(("session", "found"), [(800, []), (801, ["GPU_BUSY"])])
def test_laggards_own_ring_may_use_a_gpu_in_a_prolog(
    session: int, found: list[str], machine: Machine, tmp_path: Path, check: Check
) -> None:
    """Its processes are those of its session, which nobody else can join; it ends for the job."""
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node", environ={"SLURM_JOB_GPUS": "3"}, gpu_3=USED)
    (root / "proc/811").mkdir()
    (root / "proc/811/comm").write_text("python3\n")
    (root / "proc/811/stat").write_text(f"811 (a name) with a)) S 805 805 {session} 0 -1 4194560{' 0' * 43}\n")
    (root / "run/laggard/rings").mkdir(parents=True)
    (root / "run/laggard/rings/running.json").write_text('{"session": 800}')
    report = check(root, "--only", "gpu_busy", "--profile", "prolog")
    assert [it["code"] for it in report["findings"]] == found


@rows("probes/containers")
def test_a_container_may_be_given_only_some_gpus(
    environ: dict[str, str], reason: str, machine: Machine, tmp_path: Path, check: Check
) -> None:
    """Each sign alone: all processes can be seen, and there is no file of Docker's."""
    root = tmp_path / "node"
    shutil.copytree(machine("gpu_missing"), root, symlinks=True)
    (root / "laggard/facts.json").write_text(json.dumps({"laggard_machine": 1, "time": 1.0, "environ": environ}))
    (root / "proc/2").mkdir(parents=True, exist_ok=True)
    (root / "proc/2/comm").write_text("kthreadd\n")
    report = check(root, "--only", "gpu_count")
    assert report["findings"] == [] and reason in report["probes"][0]["reason"], report


@rows("probes/nothing_judged")
def test_why_nothing_was_judged(
    name: str, probe: str, verdict: str, reason: str, machine: Machine, check: Check
) -> None:
    (result,) = check(machine(name), "--only", probe)["probes"]
    assert result["verdict"] == verdict and reason in result["reason"], result


@pytest.mark.parametrize("damage", [None, b"", b"{", b"\xff\xfe\0", b'{"gpus": [{"index": "one"}]}', b'{"gpu": []}'])
def test_a_damaged_recording_is_unknown(damage: bytes | None, machine: Machine, tmp_path: Path, check: Check) -> None:
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node")
    (root / "laggard/nvml.json").unlink()
    if damage is not None:
        (root / "laggard/nvml.json").write_bytes(damage)
    report = check(root, "--only", "gpu_driver", "--only", "gpu_ecc", "--only", "nvlink")
    assert {probe["verdict"] for probe in report["probes"]} == {"unknown"} and report["status"] == 2
    assert all("/laggard/nvml.json" in probe["reason"] for probe in report["probes"])


@pytest.mark.parametrize("missing", ["sys/bus/pci/devices", "laggard/kmsg", "proc/uptime"])
def test_a_probe_without_its_files_is_unknown(missing: str, machine: Machine, tmp_path: Path, check: Check) -> None:
    root = _copy(machine("hgx_h100_gpus"), tmp_path / "node")
    path = root / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (result,) = check(root, "--only", "gpu_xid")["probes"]
    assert result["verdict"] == "unknown" and missing in result["reason"]


def test_the_expected_number_of_gpus_can_come_from_the_profile(machine: Machine, tmp_path: Path, check: Check) -> None:
    """It counts also where the PCI tree has lost the GPU together with NVML."""
    profile = tmp_path / "profile.yaml"
    profile.write_text("thresholds: {gpu_count: {expected: 9}}\n")
    report = check(machine("hgx_h100_gpus"), "--only", "gpu_count", "--profile", str(profile))
    assert [found["summary"] for found in report["findings"]] == ["1 of 9 missing: NVML lists 8 (by a site's line)"]
    report = check(machine("plain"), "--only", "gpu_count", "--profile", str(profile))
    assert [found["summary"] for found in report["findings"]] == [
        "9 of 9 missing: the PCI tree shows none (by a site's line)"
    ]


def test_a_node_that_is_known_to_have_gpus_has_at_least_one(machine: Machine, tmp_path: Path, check: Check) -> None:
    """As one with the label of NVIDIA's operator. The number weakens nothing where there are more."""
    profile = tmp_path / "profile.yaml"
    profile.write_text("thresholds: {gpu_count: {least: 1}}\n")
    words = ("--only", "gpu_count", "--profile", str(profile))
    report = check(machine("plain"), *words)
    assert [found["summary"] for found in report["findings"]] == [
        "1 of 1 missing: the PCI tree shows none (by its own tables)"
    ]
    assert check(machine("plain"), "--only", "gpu_count")["verdict"] == "skipped"
    assert check(machine("hgx_h100_gpus"), *words)["verdict"] == "ok"
    lost = check(machine("gpu_missing"), *words)["findings"]
    assert lost == check(machine("gpu_missing"), "--only", "gpu_count")["findings"] != []


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        *((name, []) for name in ("vfio-pci", "nvgrace_gpu_vfio_pci", "nvidia_vgpu_vfio", "pciback", "pci-stub")),
        ("nouveau", ["GPU_MISSING"]),
    ],
)
def test_a_gpu_of_a_driver_that_lends_devices_is_not_missing(
    driver: str, found: list[str], check: Check, copy_of: Callable[[str], Path]
) -> None:
    drivers = copy_of("gpu_given_to_a_guest") / "sys/bus/pci/drivers"
    (drivers / "vfio-pci").rename(drivers / driver)
    report = check(drivers.parents[3], "--only", "gpu_count")
    assert [each["code"] for each in report["findings"]] == found, report


def test_a_group_is_one_process_with_a_verdict_for_each() -> None:
    def report_pid(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        yield Fact("pid", os.getpid())

    def crash(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        raise ValueError("no")
        yield

    probes = [Probe(name, report_pid, Thresholds(), group=GROUP) for name in "ac"]
    report = run(Host(), [probes[0], Probe("b", crash, Thresholds(), group=GROUP), probes[1]], deadline_seconds=60)
    assert [probe.verdict for probe in report.probes] == [Verdict.OK, Verdict.UNKNOWN, Verdict.OK]
    assert report.facts["a"]["pid"] == report.facts["c"]["pid"]


def test_a_hang_costs_the_rest_of_its_group_and_no_other_probe() -> None:
    def finish(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        yield Fact("finished", 1)

    def hang(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
        assert host.watchdog is not None
        host.watchdog.announce("reading of GPU 3", 0.2)
        time.sleep(600)
        yield Fact("finished", 1)

    group = [
        Probe("first", finish, Thresholds(), group=GROUP, on_hang=driver_hung),
        Probe("stuck", hang, Thresholds(), group=GROUP),
        Probe("last", finish, Thresholds(), group=GROUP),
    ]
    report = Runner().run(Host(), [*group, Probe("other", finish, Thresholds())], deadline_seconds=60)
    assert [probe.verdict for probe in report.probes] == [Verdict.OK, Verdict.FAIL, Verdict.UNKNOWN, Verdict.OK]
    assert "was not reached: reading of GPU 3 gave no answer" in report.probes[2].reason
    (found,) = report.findings
    assert found.code == "GPU_DRIVER_HUNG" and found.evidence["usual_at_most_seconds"] == 0.2
    assert report.elapsed_seconds < 50  # the time limit of all of them is 60 s


@pytest.mark.parametrize(
    ("seconds", "limit", "severity"),
    [
        (2.9, 8.0, None),  # the driver's locks are held for that long
        (3.1, 8.0, Severity.WARNING),
        (8.0, 8.0, Severity.CRITICAL),
        (26.0, 27.0, None),  # eight GPUs start
        (27.0, 27.0, Severity.CRITICAL),
        (31.2, 3.0, Severity.CRITICAL),
    ],
)
def test_a_call_is_slow_before_it_hangs(seconds: float, limit: float, severity: Severity | None) -> None:
    log = "NVRM: Xid (PCI:0000:9b:00): 119, pid=7, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
    found = driver_hung(Hang(call="uuid of GPU 4", seconds=seconds, limit_seconds=limit, pid=7), log)
    assert (found.severity if found else None) is severity
    assert found is None or "GPU 0000:9b:00.0: Xid 119" in found.evidence["xids_logged"][0]


def test_recorded_nvml_answers_are_read_back_unchanged() -> None:
    answers = wire.decode(json.dumps(nvml()).encode(), Nvml)
    assert wire.decode(encode_nvml(answers), Nvml) == answers
    assert wire.decode(encode_nvml(Nvml(error="DRIVER_NOT_LOADED")), Nvml).error == "DRIVER_NOT_LOADED"
    assert encode_nvml(answers).count(b"\n") == 9 + 1


FIELDS = [name for name in nvml()["gpus"][0] if name not in ("index", "errors")]
ERRORS = st.sampled_from(["NOT_SUPPORTED", "GPU_IS_LOST", "UNKNOWN", "FUNCTION_NOT_FOUND", "NO_PERMISSION", None])


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(FIELDS), ERRORS), max_size=40))
def test_a_probe_survives_any_missing_nvml_field(gaps: list[tuple[int, str, str | None]]) -> None:
    """No probe ends in a traceback, whatever NVML does not answer."""
    answers = nvml()
    for index, field, error in gaps:
        answers["gpus"][index][field] = None
        if error:
            answers["gpus"][index].setdefault("errors", {})[field] = error
    host = _NvmlOnly(wire.decode(json.dumps(answers).encode(), Nvml))
    for probe in PROBES:
        if probe.group is GPU:
            seen = observe(probe, host)
            assert "failed:" not in seen.reason, (probe.name, seen.reason)
            assert "do not say what they are" not in seen.reason, "NVML was not asked"


class _NvmlOnly(Host):
    """A machine of which only NVML and the PCI tree can be read."""

    def __init__(self, answers: Nvml) -> None:
        super().__init__("/nonexistent")
        self._nvml = answers

    def entries(self, path: str) -> tuple[str, ...]:
        if path == "/sys/bus/pci/devices":
            return ("0000:19:00.0", "0000:83:00.0")
        return () if path.startswith("/sys/bus/pci/devices/") else super().entries(path)

    def read(self, path: str) -> str:
        if path.startswith("/sys/bus/pci/devices/"):
            bridge = "0000:83" in path
            return "0x10de\n" if path.endswith("vendor") else ("0x068000\n" if bridge else "0x030200\n")
        return super().read(path)


@pytest.mark.parametrize("temperature", [33, 81, 82, 90])
@pytest.mark.parametrize("margin", [54, 1, 0, -1, -5])
@pytest.mark.parametrize("reasons", [1, 0x04, 0x20, 0x40, None])
@pytest.mark.parametrize("limits", [{}, {"gpu_max_celsius": 87, "slowdown_celsius": 89, "memory_max_celsius": 95}])
def test_a_margin_counts_where_something_else_shows_heat(
    temperature: int, margin: int, reasons: int | None, limits: dict[str, int]
) -> None:
    """The margins of operation and slowdown are 0 and -2. `limits`: the same as temperatures, which the H100 of today
    does not tell: there the clocks alone confirm a margin."""
    answers = nvml()
    readings = {"temperature_celsius": temperature, "margin_celsius": margin, "clocks_event_reasons": reasons}
    answers["gpus"][0].update(readings, **limits)
    seen = observe(temperature_probe.PROBE, _NvmlOnly(wire.decode(json.dumps(answers).encode(), Nvml)))
    believed = (temperature >= 82 and bool(limits)) or (reasons or 0) >= 0x20
    critical = (temperature >= 89 and bool(limits)) or (believed and margin <= -2)
    warned = (temperature >= 87 and bool(limits)) or (believed and margin <= 0)
    expected = "critical" if critical else "warning" if warned else None
    assert [found.severity.value for found in seen.findings] == ([expected] if expected else [])
    assert ("margins_not_confirmed_by_a_temperature" in seen.facts) == (margin <= 0 and not believed)
    assert seen.verdict is Verdict.OK
