"""The probe nccl_env: whose NCCL variables it reads, and that it reads nothing else of any environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main
from laggard.probes.host.host import Host
from laggard.probes.nccl.model.running_ranks import read_rank_processes

pytestmark = pytest.mark.usefixtures("without_processes")

RANK = """
import sys, time
file = open("/dev/nvidia0" if len(sys.argv) < 2 else sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["healthcheck", "--host-root", str(root), "--only", "nccl_env", "--format", "json"])
    return dict(json.loads(capsys.readouterr().out))


def test_only_known_nccl_variables_are_reported(
    machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(machine("nccl_rank_over_tcp"), capsys)
    text = json.dumps(report)
    assert "NCCL_SESSION_PASSWORD" in text, "the name of an unknown variable is reported"
    assert "sentinel" not in text and "AWS_SECRET" not in text and "/home/ada" not in text


def test_a_finding_names_the_process_and_its_nccl_version(
    machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(machine("nccl_rank_over_tcp"), capsys)
    net = next(finding for finding in report["findings"] if finding["device"] == "NCCL_NET")
    assert net["evidence"]["set_in"] == ["process 4242"]
    assert net["evidence"]["nccl_version"] == "2.27.5"
    assert report["facts"]["nccl_env"]["ranks"] == 1, "a shell that holds no GPU is no rank"


def test_ranks_with_the_same_variables_are_one_finding(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("nccl_rank_over_tcp")
    for pid in range(5000, 5007):
        (root / f"proc/{pid}/fd").mkdir(parents=True)
        (root / f"proc/{pid}/environ").write_bytes(b"NCCL_NET=Socket\0")
        (root / f"proc/{pid}/fd/9").symlink_to(f"/dev/shm/laggard/job-1.{pid}")
    (found,) = [finding for finding in check(root, capsys)["findings"] if finding["device"] == "NCCL_NET"]
    assert found["evidence"]["count"] == 8


def test_a_rank_in_a_container_does_not_have_the_machines_settings(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("nccl_rank_over_tcp")
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    own = root / "proc/4242/root/etc"
    own.mkdir()
    (own / "nccl.conf").write_text("NCCL_SHM_DISABLE=1\n")
    set_in = {it["device"]: it["evidence"].get("set_in") for it in check(root, capsys)["findings"]}
    assert set_in["NCCL_P2P_DISABLE"] == ["/etc/nccl.conf"]
    assert set_in["NCCL_SHM_DISABLE"] == ["process 4242"]


def test_processes_of_other_users_are_a_fact_and_no_fault(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("hgx_h100")
    (root / "proc/4242").mkdir()
    (root / "proc/4242/environ").symlink_to("environ")  # cannot be opened, even by root
    report = check(root, capsys)
    assert report["verdict"] == "ok"
    assert "1 processes" in report["facts"]["nccl_env"]["not_permitted"]


def test_a_settings_file_that_cannot_be_read_is_unknown(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("nccl_conf_harmful")
    (root / "etc/nccl.conf").write_bytes(b"\x7fELF\0")
    assert check(root, capsys)["verdict"] == "unknown"


def test_a_site_may_set_a_variable_on_purpose(
    machine: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("only: [nccl_env]\nthresholds: {nccl_env: {ignore: [NCCL_IB_DISABLE, NCCL_P2P_DISABLE]}}\n")
    root = str(machine("nccl_conf_harmful"))
    assert main(["healthcheck", "--host-root", root, "--profile", str(profile)]) == 0


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
