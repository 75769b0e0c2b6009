"""The transport that a ring's NCCL really used: recorded logs in place of GPUs', and the job's environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.paths import DATA
from support.waiting import wait_for

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.kit.errors import UsageError
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.transport import LOG_READ, Transport
from laggard.rings.command import as_the_job, parse_environment, read_job_environment
from laggard.rings.messages import Observed
from laggard.rings.transport import judge_transport_used
from laggard.rings.worker.devices import has_rdma, observe


def observed_in(name: str, rdma: bool | None = True) -> dict[int, Observed]:
    """The ranks of a recorded log, as a ring's ranks would report them."""
    log = parse_nccl_log((DATA / "nccl_logs" / name).read_text())
    return {
        rank: Observed(Transport(process.version, "library", (), 2, LOG_READ, process, rank).to_json(), rdma)
        for rank, process in enumerate(log.processes)
    }


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tcp_no_device.log", "TCP_FALLBACK"),
        ("gdr_no_module.log", "GPUDIRECT_OFF"),
        ("shm_p2p_refused.log", "SHM_INSTEAD_OF_P2P"),
    ],
)
def test_a_slow_transport_is_named_with_its_cause(name: str, code: str) -> None:
    used = judge_transport_used(observed_in(name))
    found = next(found for found in used.findings if found.code == code)
    assert found.device == "job ring" and found.evidence["cause"]


def test_a_healthy_ring_says_what_it_used() -> None:
    used = judge_transport_used(observed_in("roce_gpudirect.log"))
    assert (used.findings, used.unknown) == ((), "")
    assert used.facts["networks"] == ["IB"] and used.facts["gpudirect"] is True and used.facts["channels"]


def test_tcp_is_no_fallback_where_there_is_no_rdma() -> None:
    assert not judge_transport_used(observed_in("tcp_no_device.log", rdma=False)).findings


def test_without_a_log_nothing_is_known_and_nothing_is_ok() -> None:
    reports = {0: observe({}, 0, "2.27.5"), 1: Observed("no JSON", None)}
    used = judge_transport_used(reports)
    assert "how rank 0 talk is not known" in used.unknown and "1 ranks' reports" in used.unknown


def test_the_log_that_nccl_wrote_for_this_process_is_read(tmp_path: Path) -> None:
    log = (DATA / "nccl_logs" / "roce_gpudirect.log").read_text()
    (tmp_path / f"log.{os.getpid()}").write_text(log)
    reported = observe({ENV_NCCL_LOG: str(tmp_path / "log.%p"), "NCCL_IB_HCA": "mlx5", "SECRET": "x"}, 3, "2.27.5")
    transport = Transport.from_json(reported.transport)
    assert (transport.rank, transport.log, transport.variables) == (3, LOG_READ, (("NCCL_IB_HCA", "mlx5"),))
    assert transport.process.network == "IB"


def test_software_devices_are_no_rdma(tmp_path: Path) -> None:
    assert has_rdma(str(tmp_path / "nothing")) is False
    (tmp_path / "rxe0").mkdir()
    assert has_rdma(str(tmp_path)) is False
    (tmp_path / "mlx5_0" / "device").mkdir(parents=True)
    assert has_rdma(str(tmp_path)) is True


def test_the_ring_has_the_jobs_settings_and_its_own_place() -> None:
    own = {"RANK": "0", "PATH": "/own", "LAGGARD_NODE": "n0", "PYTHONPATH": "/own/python", "NCCL_NET": "IB"}
    job = {"RANK": "7", "NCCL_NET": "Socket", "PATH": "/job", "SLURM_PROCID": "3", "LD_LIBRARY_PATH": "/job/lib"}
    assert as_the_job(own, job) == {
        "RANK": "0",
        "LAGGARD_NODE": "n0",
        "PYTHONPATH": "/own/python",
        "NCCL_NET": "Socket",
        "PATH": "/job",
        "LD_LIBRARY_PATH": "/job/lib",
    }


def test_an_environment_is_read_from_a_process_and_from_a_file(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={"NCCL_NET": "Socket", "TEXT": "a\nb"}) as process:
        try:
            environ = Path(f"/proc/{process.pid}/environ")
            wait_for(environ.read_bytes, lambda: "the kernel has not made the new program yet")
            assert read_job_environment(str(process.pid)) == {"NCCL_NET": "Socket", "TEXT": "a\nb"}
        finally:
            process.kill()
    (tmp_path / "env").write_text("NCCL_NET=Socket\nBASH_FUNC_x%%=() {\n}\nX=1=2\n")
    assert read_job_environment(str(tmp_path / "env")) == {"NCCL_NET": "Socket", "X": "1=2"}
    assert parse_environment(b"\xff=1\0A=\xff\0") == {"A": "\udcff"}


@pytest.mark.parametrize("source", ["999999999", "/nonexistent", "/dev/null"])
def test_what_holds_no_environment_is_told(source: str) -> None:
    with pytest.raises(UsageError, match="--env-from"):
        read_job_environment(source)
