"""What a ring says of its sizes, bandwidths and transport."""

import os
import subprocess
from pathlib import Path

import pytest
from support.paths import DATA
from support.rows import rows
from support.waiting import wait_for

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.kit.errors import UsageError
from laggard.model import Verdict
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.transport import LOG_READ, Transport
from laggard.rings.command import as_the_job, parse_environment, read_job_environment
from laggard.rings.describe import render_nccl_tests
from laggard.rings.document import Ring, RingNode
from laggard.rings.judge import measured, ring_result
from laggard.rings.messages import Observed
from laggard.rings.options import bus_factor, counts, parse_size, size_text, sweep_sizes
from laggard.rings.transport import judge_transport_used
from laggard.rings.worker.devices import has_rdma, observe


def observed_in(name: str, rdma: bool | None = True) -> dict[int, Observed]:
    """The ranks of a recorded log, as a ring's ranks would report them."""
    log = parse_nccl_log((DATA / "nccl_logs" / name).read_text())
    return {
        rank: Observed(Transport(process.version, "library", (), 2, LOG_READ, process, rank).to_json(), rdma)
        for rank, process in enumerate(log.processes)
    }


@rows("rings/slow_transports")
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


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("1K", 1024), ("64m", 64 << 20), ("2GiB", 2 << 30)])
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "1T", "9" * 20, "1K 2K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_sizes_are_written_as_they_are_read() -> None:
    for size in sweep_sizes(8, 1 << 30, 2):
        assert parse_size(size_text(size)) == size


def test_a_sweep_ends_at_its_largest_size() -> None:
    assert sweep_sizes(1024, 5000, 2) == (1024, 2048, 4096)
    assert sweep_sizes(1024, 1024, 4) == (1024,)


def test_bus_bandwidth_is_nccl_tests() -> None:
    """doc/PERFORMANCE.md: 2(n-1)/n for all_reduce, (n-1)/n for the two others."""
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8


def test_parts_are_rounded_down_to_16_bytes() -> None:
    """AllGatherGetCollByteCount in src/all_gather.cu."""
    assert counts("all_reduce", 1000, 3) == (250, 250)
    assert counts("all_gather", 1024, 3) == (84, 252)
    assert counts("reduce_scatter", 1024, 3) == (252, 84)
    assert counts("all_gather", 32, 3) == (0, 0)


def test_a_result_is_the_mean_of_the_ranks_and_the_sum_of_their_faults() -> None:
    reports = [measured("all_reduce", 1 << 20, seconds, wrong) for seconds, wrong in (((1e-3, 3e-3), 0), ((4e-3,), 5))]
    result = ring_result(reports, 2)
    assert result.time_seconds == pytest.approx(3e-3)
    assert result.algbw_bytes_per_second == pytest.approx((1 << 20) / 3e-3)
    assert result.busbw_bytes_per_second == pytest.approx(result.algbw_bytes_per_second)
    assert (result.wrong, result.iterations) == (5, 1)
    assert result.p99_seconds == pytest.approx(3.5e-3)


def test_the_columns_of_nccl_tests() -> None:
    """A program that splits rows finds size, count, type, redop, root, and two halves of time, algbw, busbw, #wrong."""
    results = tuple(
        ring_result([measured(op, 16 << 20, (0.01,), 0)] * 4, 4)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
    )
    nodes = (RingNode(0, "n0", 0, 4, "CPU"),)
    text = render_nccl_tests(Ring(Verdict.OK, 4, {"backend": "gloo"}, nodes, results, ()))
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert [len(row) for row in rows] == [13, 13, 13]
    time, unmeasured = ["10000.0", "1.68"], ["N/A"] * 4
    assert rows[0] == ["16777216", "4194304", "float", "sum", "-1", *unmeasured, *time, "2.52", "0"]
    assert rows[1] == ["16777216", "1048576", "float", "none", "-1", *time, "1.26", "0", *unmeasured]
    assert rows[2] == ["16777216", "1048576", "float", "sum", "-1", *time, "1.26", "0", *unmeasured]
    assert "# Out of bounds values : 0 OK" in text
    assert "# Avg bus bandwidth    : 1.67772" in text
