"""`laggard diagnose` on logs of NCCL: one log, one for each rank, and logs with other files of the machine."""

from pathlib import Path

import pytest
from support.diagnosed import answer
from support.nccl_logs import NCCL_LOGS, log_expectations, log_text

from laggard.cli import main

LSPCI = """15:01.0 PCI bridge: Intel Corporation Device 352a (rev 04)
19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
3b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)
"""
NIC = "1a:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"


@pytest.mark.parametrize("name", log_expectations())
def test_the_exit_status_follows_from_the_findings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = answer(capsys, NCCL_LOGS / f"{name}.log")
    expected = log_expectations()[name]
    critical = any(row[1] == "critical" for row in expected["findings"])
    job = [expected["job"]] if "job" in expected else []
    assert [file["kind"] for file in document["files"]] == ["job log" if job else "NCCL log"]
    assert [found["code"] for found in document["findings"] if found["code"].startswith("JOB_")] == job
    assert status == (1 if critical or job else 2 if "unknown" in expected else 0)


def test_the_first_line_names_the_fault_and_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(NCCL_LOGS / "tcp_no_libibverbs.log")]) == 1
    answer = " ".join(capsys.readouterr().out.split("\n\n")[0].splitlines())
    assert answer.startswith("volta0 and 1 other TCP instead of RDMA: libibverbs") and "(TCP_FALLBACK" in answer


def test_a_log_that_is_cut_off_is_unknown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(NCCL_LOGS / "cut_off.log")]) == 2
    assert capsys.readouterr().out.startswith(
        "Cannot tell: cut_off.log: says that IB was chosen, but lacks the channel"
    )


def test_the_files_of_several_ranks_are_judged_as_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NCCL_DEBUG_FILE makes a file for each process, and only all files together show that the versions differ."""
    paths = []
    for number in range(4):
        lines = [line for line in log_text("version_mixed").splitlines(True) if f":{4100 + number}:" in line]
        paths.append(tmp_path / f"rank{number}.log")
        paths[-1].write_text("".join(lines))
        assert answer(capsys, paths[-1])[0] == 0, "one rank alone shows nothing"
    status, document = answer(capsys, *paths)
    assert (status, [found["code"] for found in document["findings"]]) == (1, ["NCCL_VERSION_MIXED"])
    assert len(document["files"]) == 4


@pytest.mark.parametrize(("lspci", "status"), [(LSPCI, 0), (LSPCI + NIC, 1)])
def test_sockets_are_judged_by_the_hardware_in_another_file(
    lspci: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = tmp_path / "lspci"
    devices.write_text(lspci)
    for name in ("tcp_no_device", "tcp_switched_off"):
        got, document = answer(capsys, NCCL_LOGS / f"{name}.log", devices)
        codes = {found["code"] for found in document["findings"] if found["severity"] == "critical"}
        assert ("TCP_FALLBACK" in codes) == bool(status), codes
        log = next(file for file in document["files"] if file["kind"] == "NCCL log")
        assert (got == 1) == bool(status) and log["unknown"] == ""


def test_a_log_within_a_jobs_output_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = "Loading checkpoint shards\n" * 20_000
    path = tmp_path / "slurm-4711.out"
    path.write_text(noise + "".join(f"3: {line}\n" for line in log_text("shm_p2p_refused").splitlines()) + noise)
    status, document = answer(capsys, path)
    assert (status, document["files"][0]["kind"]) == (1, "NCCL log")


def test_the_facts_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    path = NCCL_LOGS / "roce_gpudirect.log"
    facts = answer(capsys, path)[1]["facts"][str(path)]
    assert (facts["ranks_seen"], facts["ranks"], facts["hosts"]) == (4, 4, ["gpu00", "gpu01"])
    assert (facts["nccl_versions"], facts["networks"]) == (["2.27.5"], ["IB"])
    assert facts["channels"] == {"NET/IB with GPUDirect": 8, "P2P/CUMEM": 4}


def test_receiving_channels_of_newer_nccls_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    path = NCCL_LOGS / "efa_2_31.log"
    assert answer(capsys, path)[1]["facts"][str(path)]["channels"] == {"NET/Libfabric with GPUDirect": 4}


@pytest.mark.parametrize("name", ["NCCL_FROBNICATE", "NCCL_IB_GID_INDEXX"])
@pytest.mark.parametrize("version", ["2.27.5", "2.99.1"])
def test_a_variable_that_nccl_logged_is_not_unknown(
    name: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NCCL logs the variables that it has read."""
    path = tmp_path / "job.log"
    text = log_text("roce_gpudirect").replace("2.27.5", version)
    path.write_text(text + f"gpu00:4100:4100 [0] NCCL INFO {name} set by environment to 1.\n")
    status, document = answer(capsys, path)
    assert (status, document["findings"]) == (0, [])
    assert document["facts"][str(path)]["nccl_versions"] == [version]


def test_the_help_names_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    assert "NCCL" in " ".join(capsys.readouterr().out.split())
