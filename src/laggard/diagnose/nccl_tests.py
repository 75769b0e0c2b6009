"""The format `nccl-tests`: the output of all_reduce_perf and the others. Wrong results, ranks that
ran alone and a test that hung are judged: what bandwidth is right depends on the machine, and a comparison tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.model import Finding, Severity
from laggard.nccl.tests_output import TestsOutput, is_tests_output, parse_tests_output
from laggard.probes.probe import finding
from laggard.text.words import counted

MIN_RANKS: Final = 2
_SOCKETS: Final = re.compile(
    r"(?:\b([\w.-]{1,64}):\d+:\d+ )?(?:\[\d+\] )?NCCL INFO (?:Using network Socket|.*NET plugin Socket to comm)"
)
_NO_DEVICE: Final = re.compile(r"NET/IB ?: No device found")
_FAILED: Final = re.compile(r"Test (?:NCCL|CUDA) failure|NCCL WARN|Segmentation fault|out of memory", re.IGNORECASE)
_STOPPED: Final = re.compile(r"TIME LIMIT|CANCELLED|[Tt]imed? ?out|Killed|Terminated|\^C|SIGINT|SIGTERM")


def recognise(content: FileContent) -> bool:
    return is_tests_output(content.text[: 1 << 20])


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    output = parse_tests_output(content.text)
    if not output.rows:
        return _without_rows(output, content.text)
    unchecked = any(row.wrong is None for row in output.rows)
    unknown = "results were not checked: run nccl-tests with -c 1" if unchecked else ""
    return FileJudgement(
        (*_wrong_results(output), *_alone(output), *_by_sockets(output, content.text)), _facts(output), unknown
    )


def _without_rows(output: TestsOutput, text: str) -> FileJudgement:
    unknown = "has no row with a time: the test ended before it measured anything"
    if output.ranks < MIN_RANKS or _FAILED.search(text) or not _STOPPED.search(text):
        return FileJudgement(unknown=unknown)
    found = finding(
        "JOB_COLLECTIVE_TIMEOUT",
        "nccl-tests",
        "printed its header and no row until it was stopped: the first collective never finished (a hang)",
        evidence={"ranks": output.ranks, "hosts": list(output.hosts[:16])},
        fix="Run it on each node alone, then on pairs of nodes, with NCCL_DEBUG=INFO: the pair that hangs is at fault. "
        "Check its ports, and that no firewall stands between the nodes.",
        commands=("laggard healthcheck", "ibstat"),
    )
    return FileJudgement((found,), {"ranks": output.ranks, "nodes": output.nodes})


def _wrong_results(output: TestsOutput) -> Iterator[Finding]:
    wrong = [row for row in output.rows if row.wrong]
    if not wrong and not output.out_of_bounds:
        return
    at = f" at {counted(len(wrong), 'size')}" if wrong else " (out of bounds values: FAILED)"
    hosts = list(output.hosts[:16])
    sizes = [row.size_bytes for row in wrong[:16]]
    yield finding(
        "RING_FAILED",
        "nccl-tests" + (f" on {hosts[0]}" if len(hosts) == 1 else ""),
        f"gave wrong results{at}: data is corrupted on the way or in a GPU",
        evidence={"sizes_bytes": sizes, "wrong": sum(row.wrong or 0 for row in wrong), "hosts": hosts or None},
        fix="Remove NCCL_PROTO, NCCL_CHUNK_SIZE and other untested settings, and run it again; where results stay "
        "wrong, set NCCL_P2P_DISABLE=1: if they are right then, the IOMMU or ACS breaks the way between GPUs. Take the "
        "nodes out one by one, and look at their Xids and ECC errors.",
    )


def _alone(output: TestsOutput) -> Iterator[Finding]:
    if not output.alone or any(row.busbw for row in output.rows):
        return
    yield finding(
        "TEST_MEASURED_NOTHING",
        "nccl-tests",
        f"ran as {counted(output.alone, 'process')}, each alone with one rank: no communication was measured",
        evidence={"processes_alone": output.alone, "hosts": list(output.hosts[:16])},
        fix="Build nccl-tests with MPI (`make MPI=1 MPI_HOME=...`, with the MPI whose mpirun starts it); on one node, "
        "start one process with -g and the number of GPUs.",
        commands=("ldd build/all_reduce_perf | grep -i mpi",),
    )


def _by_sockets(output: TestsOutput, text: str) -> Iterator[Finding]:
    """Tells of TCP where NCCL's own lines stand beside the table, and the test is not known to be of one node."""
    found = _SOCKETS.search(text)
    if not found or output.nodes == 1 or not output.rows:
        return
    best = max(row.busbw for row in output.rows)
    because = ": NET/IB : No device found" if _NO_DEVICE.search(text) else ""
    yield finding(
        "TCP_FALLBACK",
        f"NCCL on {found[1]}" if found[1] else "NCCL",
        f"sent by TCP (network Socket){because}; the best bus bandwidth is {best / 1e9:.3g} GB/s",
        severity=Severity.WARNING,
        evidence={"best_busbw_bytes_per_second": best},
        fix="If the nodes have RDMA, find out why NCCL does not see it: ibv_devinfo in the container, NCCL_IB_HCA, "
        "NCCL_IB_DISABLE, and the limit of locked memory.",
        commands=("ibv_devinfo", "ulimit -l"),
    )


def _facts(output: TestsOutput) -> dict[str, object]:
    best = max(output.rows, key=lambda row: row.busbw)
    return {
        "operation": output.operation,
        "ranks": output.ranks,
        "nodes": output.nodes,
        "sizes": len(output.rows),
        "best_busbw_bytes_per_second": best.busbw,
        "at_size_bytes": best.size_bytes,
    }


NCCL_TESTS = FileFormat("nccl-tests", recognise, judge, shares=True)
