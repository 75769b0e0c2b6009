"""The probe nccl_env: whose NCCL variables it reads, and that it reads nothing else of any environment."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.judge import Check
from support.materialise import materialise
from support.rows import rows

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.nccl import environment
from laggard.probes.nccl.model.running_ranks import RankProcesses, read_rank_processes

pytestmark = pytest.mark.usefixtures("without_processes")

Machine = Callable[[str], Path]

RANK = """
import sys, time
file = open("/dev/nvidia0" if len(sys.argv) < 2 else sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


def test_only_known_nccl_variables_are_reported(machine: Machine, check: Check) -> None:
    report = check(machine("nccl_rank_over_tcp"), "nccl_env")
    text = json.dumps(report)
    assert "NCCL_SESSION_PASSWORD" in text, "the name of an unknown variable is reported"
    assert "sentinel" not in text and "AWS_SECRET" not in text and "/home/ada" not in text


def test_a_finding_names_the_process_and_its_nccl_version(machine: Machine, check: Check) -> None:
    report = check(machine("nccl_rank_over_tcp"), "nccl_env")
    net = next(finding for finding in report["findings"] if finding["device"] == "NCCL_NET")
    assert net["evidence"]["set_in"] == ["process 4242"]
    assert net["evidence"]["nccl_version"] == "2.27.5"
    assert report["facts"]["nccl_env"]["ranks"] == 1, "a shell that holds no GPU is no rank"


@rows("probes/unknown_variables")
def test_an_unknown_variable_is_a_warning_where_an_nccl_runs_that_does_not_know_it(
    base: str, severity: str, set_in: tuple[str, ...], copy_of: Machine, check: Check
) -> None:
    root = copy_of(base)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/nccl.conf").write_text("NCCL_SESSION_PASSWORD=1\n")
    (found,) = [it for it in check(root, "nccl_env")["findings"] if it["code"] == "NCCL_ENV_UNKNOWN"]
    assert (found["severity"], tuple(found["evidence"]["set_in"])) == (severity, set_in)


def test_ranks_with_the_same_variables_are_one_finding(copy_of: Machine, check: Check) -> None:
    root = copy_of("nccl_rank_over_tcp")
    for pid in range(5000, 5007):
        (root / f"proc/{pid}/fd").mkdir(parents=True)
        (root / f"proc/{pid}/environ").write_bytes(b"NCCL_NET=Socket\0")
        (root / f"proc/{pid}/fd/9").symlink_to(f"/dev/shm/laggard/job-1.{pid}")
    (found,) = [finding for finding in check(root, "nccl_env")["findings"] if finding["device"] == "NCCL_NET"]
    assert found["evidence"]["count"] == 8


def test_a_rank_in_a_container_does_not_have_the_machines_settings(copy_of: Machine, check: Check) -> None:
    root = copy_of("nccl_rank_over_tcp")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    own = root / "proc/4242/root/etc"
    own.mkdir()
    (own / "nccl.conf").write_text("NCCL_SHM_DISABLE=1\n")
    set_in = {it["device"]: it["evidence"].get("set_in") for it in check(root, "nccl_env")["findings"]}
    assert set_in["NCCL_P2P_DISABLE"] == ["/etc/nccl.conf"]
    assert set_in["NCCL_SHM_DISABLE"] == ["process 4242"]


def test_processes_of_other_users_are_a_fact_and_no_fault(copy_of: Machine, check: Check) -> None:
    root = copy_of("hgx_h100")
    (root / "proc/4242").mkdir()
    (root / "proc/4242/environ").symlink_to("environ")  # cannot be opened, even by root
    report = check(root, "nccl_env")
    assert report["verdict"] == "ok"
    assert "of 1 process is" in report["facts"]["nccl_env"]["not_permitted"]


def unread(root: Path, pid: int = 4242, uid: int = 1007, inside: int = 0) -> None:
    """A process of which only that is known which every user may see; `inside`: its number in its container."""
    (root / f"proc/{pid}").mkdir()
    (root / f"proc/{pid}/environ").symlink_to("environ")  # cannot be opened, even by root
    namespaces = f"{pid}\t{inside}" if inside else str(pid)
    (root / f"proc/{pid}/status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{namespaces}\n")
    (root / f"proc/{pid}/comm").write_text("python\n")


def on_gpu(root: Path, **values: Any) -> None:
    """Changes what NVML says of GPU 3."""
    path = root / "laggard/nvml.json"
    nvml = json.loads(path.read_text())
    nvml["gpus"][3].update(values)
    path.write_text(json.dumps(nvml))


def verdict(report: dict[str, Any]) -> tuple[str, str]:
    (probe,) = report["probes"]
    return probe["verdict"], probe["reason"]


def test_a_process_on_a_gpu_whose_environment_cannot_be_read_is_unknown(copy_of: Machine, check: Check) -> None:
    root = copy_of("hgx_h100_gpus")
    unread(root)
    assert verdict(check(root, "nccl_env"))[0] == "ok", "another user's shell has no NCCL to set"
    on_gpu(root, processes=[{"pid": 4242, "used_bytes": 1 << 30}])
    assert verdict(check(root, "nccl_env")) == (
        "unknown",
        "the environment of a process that trains (4242) is not for this user to read; root may",
    )
    (root / "proc/4242/comm").write_text("nv-hostengine\n")
    assert verdict(check(root, "nccl_env"))[0] == "unknown", "a user's process may have any name"
    (root / "proc/4242/cgroup").write_text("0::/system.slice/nvidia-dcgm.service\n")
    assert verdict(check(root, "nccl_env"))[0] == "ok", "a service that watches the GPU trains nothing"


def test_where_nvml_does_not_tell_who_computes_it_is_unknown_too(copy_of: Machine, check: Check) -> None:
    root = copy_of("hgx_h100_gpus")
    on_gpu(root, processes=None, errors={"processes": "NO_PERMISSION"})
    assert verdict(check(root, "nccl_env"))[0] == "ok", "every environment was read"
    unread(root)
    told, reason = verdict(check(root, "nccl_env"))
    assert told == "unknown" and "of 1 process is" in reason and "a list of processes of GPU 3: NO_PERMISSION" in reason


@pytest.mark.parametrize("folder", ["run/laggard/ranks", "dev/shm/laggard"])
@rows("probes/unreadable_environment")
def test_a_process_with_a_rank_file_whose_environment_cannot_be_read_is_unknown(
    folder: str, file: str, told: str, copy_of: Machine, check: Check
) -> None:
    root = copy_of("plain")
    unread(root, inside=17)
    (root / folder / file).parent.mkdir(parents=True)
    (root / folder / file).touch()
    found, reason = verdict(check(root, "nccl_env"))
    assert found == told and ("(4242)" in reason) is (told == "unknown")


def test_a_settings_file_that_cannot_be_read_is_unknown(copy_of: Machine, check: Check) -> None:
    root = copy_of("nccl_conf_harmful")
    (root / "etc/nccl.conf").write_bytes(b"\x7fELF\0")
    assert check(root, "nccl_env")["verdict"] == "unknown"


def test_a_site_may_set_a_variable_on_purpose(machine: Machine, tmp_path: Path, check: Check) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("only: [nccl_env]\nthresholds: {nccl_env: {ignore: [NCCL_IB_DISABLE, NCCL_P2P_DISABLE]}}\n")
    assert check(machine("nccl_conf_harmful"), "", "--profile", str(profile))["status"] == 0


def test_a_real_process_that_holds_a_rank_file_is_found(tmp_path: Path) -> None:
    """It reads this machine's own /proc; the rank file lies in the shared memory directory as a real one does."""
    folder = Path("/dev/shm/laggard")
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    file = folder / f"test-{os.getpid()}"
    file.touch()
    environ = {**os.environ, "NCCL_ALGO": "Ring", "NCCL_PRIVATE": "sentinel", "HOME": str(tmp_path)}
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Tree\nNCCL_NTHREADS=256\n")
    process = subprocess.Popen([sys.executable, "-c", RANK, str(file)], env=environ, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        ranks = [rank for rank in read_rank_processes(Host()).processes if rank.pid == process.pid]
    finally:
        process.kill()
        process.communicate()
        file.unlink()
        if made:
            folder.rmdir()
    (rank,) = ranks
    assert rank.environment == {"NCCL_ALGO": "Ring", "NCCL_NTHREADS": "256", "NCCL_PRIVATE": ""}


def test_the_machines_own_file_is_judged_where_no_process_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    """Whoever holds /proc would have a node pass whose nccl.conf breaks jobs."""
    materialise("nccl_conf_harmful", tmp_path / "machine")
    before = check(tmp_path / "machine", "nccl_env")

    def nobody(host: Host) -> RankProcesses:
        raise Unknown("5 processes do not let themselves be read")

    monkeypatch.setattr(environment, "read_rank_processes", nobody)
    report = check(tmp_path / "machine", "nccl_env")
    critical = [it["code"] for it in report["findings"] if it["severity"] == "critical"]
    assert critical == [it["code"] for it in before["findings"] if it["severity"] == "critical"] != []
    assert "do not let themselves be read" in json.dumps(report["probes"])
