"""What people post: the smallest texts of public reports, each with its right answer, and the corpus of others' cases,
which stays as it was written."""

import hashlib
import json
from pathlib import Path

import pytest
from support.diagnosed import answer
from support.paths import TESTS

REPORTS = TESTS / "data" / "field_reports"
FIELD = TESTS / "data" / "field"
PARTS = ("jobs", "nodes", "evidence")

ANSWERS = {
    "address_in_use_warned": ("JOB_RENDEZVOUS_FAILED", "12211"),
    "checkpoint_rank0_silent": ("JOB_COLLECTIVE_TIMEOUT", "rank 0 did not come"),
    "cuda_802": ("FABRIC_MANAGER_DOWN", "802"),
    "events_without_head": ("POD_NOT_STARTED", "pod train/worker-bpvks on n35"),
    "first_rank_by_its_own_text": ("JOB_EXCEPTION", "rank 6 failed first"),
    "gsp_heartbeat": ("GPU_LOST", "GPU 6"),
    "hccl_remote_rank_late": ("JOB_COLLECTIVE_TIMEOUT", "rank 0 (192.0.2.1) did not come"),
    "jax_barrier": ("JOB_RENDEZVOUS_FAILED", "ranks 1-3 did not come"),
    "jax_register": ("JOB_RENDEZVOUS_FAILED", "ranks did not meet"),
    "mpi_peer_disconnected": ("JOB_KILLED", "n16 was lost, says a process on n13"),
    "mpi_worker_137": ("JOB_KILLED", "mpijob-worker-0 was lost"),
    "name_unknown": ("JOB_RENDEZVOUS_FAILED", "master-0, does not resolve"),
    "nccl_old_warn_head": ("JOB_NCCL_ERROR", "no network interface"),
    "openacc_ecc": ("JOB_CUDA_ERROR", "the GPU's memory failed"),
    "orte_hostname": ("JOB_KILLED", "ip-10-0-0-17.ec2.internal was lost"),
    "slurmctld_gres": ("GPU_MISSING", "gpu7 fails: Slurm counts 7 of 8"),
    "slurmd_no_device": ("GPU_DRIVER_FAILED", "n3 fails: the device file /dev/nvidia0"),
    "talos_head": ("GPU_XID", "GPU 0000:0b:00.0"),
    "efa_address_vector": ("JOB_NCCL_ERROR", "security group"),
    "gloo_loopback": ("JOB_RENDEZVOUS_FAILED", "loopback"),
    "memlock_reg_mr": ("MEMLOCK_LIMIT", "ulimit -l"),
    "mtu_async_event": ("RDMA_MTU_LOW", "MTU"),
    "no_socket_interface": ("JOB_NCCL_ERROR", "NCCL_SOCKET_IFNAME"),
    "nvls_invalid_argument": ("FABRIC_NOT_READY", "fabric manager"),
    "port_error_no_device": ("JOB_NCCL_ERROR", "n48"),
    "raylet_worker_died": ("JOB_KILLED", "Ray"),
    "slurm_launch_failed": ("JOB_RENDEZVOUS_FAILED", "n3"),
    "subgroup_rank_alone": ("JOB_COLLECTIVE_TIMEOUT", "rank 218 waited"),
    "subgroup_rank_behind": ("JOB_COLLECTIVE_TIMEOUT", "rank 5 is behind"),
    "vllm_head_shm_full": ("JOB_DISK_FULL", "/dev/shm"),
    "watchdog_stuck": ("JOB_COLLECTIVE_TIMEOUT", "ranks 0-2"),
}
QUIET = ("name_unknown_then_met", "async_event_benign", "heads_quiet_prose", "lustre_came_back")


@pytest.mark.parametrize("name", ANSWERS)
def test_a_public_report_is_answered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, words = ANSWERS[name]
    findings = answer(capsys, REPORTS / f"{name}.txt")[1]["findings"]
    assert [(each["code"], each["severity"]) for each in findings] == [(code, "critical")]
    said = f"{findings[0]['device']} {findings[0]['summary']} {findings[0]['fix']}"
    assert words in said


def test_a_gpu_that_wants_a_reset_stands_before_the_exception(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, REPORTS / "reset_required")[1]
    assert document["findings"][0]["code"] == "GPU_LOST"
    assert "NV_ERR_RESET_REQUIRED" in document["joined"]["answer"]


def test_a_plugin_whose_daemon_is_gone_lost_no_peer(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, REPORTS / "plugin_daemon_gone")[1]
    assert document["findings"][0]["code"] == "GPU_MISSING"
    alone = answer(capsys, REPORTS / "plugin_daemon_gone" / "ranks.log")[1]["findings"]
    assert "No peer is at fault" in alone[0]["fix"]["text"]


@pytest.mark.parametrize("path", sorted((REPORTS / "heads").iterdir()), ids=lambda path: path.stem)
def test_an_exception_is_found_behind_any_head(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = answer(capsys, path)[1]["findings"]
    assert [each["code"] for each in findings] == ["JOB_GPU_OUT_OF_MEMORY"]


@pytest.mark.parametrize("name", QUIET)
def test_what_only_looks_like_a_failure_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not answer(capsys, REPORTS / f"{name}.txt")[1]["findings"]


@pytest.mark.parametrize("part", PARTS)
def test_the_corpus_is_as_it_was_written(part: str) -> None:
    """Its truths count because they were written before the rules that they call for."""
    for line in (FIELD / f"SHA256_{part}").read_text().splitlines():
        digest, _, name = line.partition("  ")
        path = FIELD / name.removeprefix("./")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, f"{path} was changed"


def near_misses() -> list[str]:
    lines = [line for part in PARTS for line in (FIELD / f"truth_{part}.jsonl").read_text().splitlines()]
    truths = map(json.loads, lines)
    return [truth["case"] for truth in truths if truth["kind"] == "nothing"]


@pytest.mark.parametrize("case", near_misses())
def test_a_near_miss_is_not_critical(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = answer(capsys, *(path for path in (FIELD / case).rglob("*") if path.is_file()))
    assert not [each for each in document["findings"] if each["severity"] == "critical"]
