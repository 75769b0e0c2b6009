"""The formats of NCCL's own output: `NCCL log`, `nccl-tests` and `RAS report`, as text and as JSON.

nccl-tests: wrong results, ranks that ran alone and a test that hung are judged: what bandwidth is right depends on the
machine, and a comparison tells it.

RAS: the text's form is that of NCCL 2.24 to 2.30 and RCCL 2.28, src/ras/client_support.cc; the JSON's that of NCCL
2.28.7, which RCCL's is too (ROCm/rocm-systems 2386d61, projects/rccl/src/ras/client_support.cc), with more operations.
Files without a secondary hash are read as well. A report is one look: that ranks have launched fewer collectives is a
warning, since they may be a moment late.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_format import (
    ACCUSED,
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    documents,
    list_of,
    text_of,
)
from laggard.kit.words import counted, ranks_text
from laggard.model import Finding, Severity
from laggard.nccl.log.lines import NO_WRITER, PrefixCache, lines_in
from laggard.nccl.log.reader import NcclLogReader
from laggard.nccl.tests_output import TestsOutput, is_tests_output, parse_tests_output
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log
from laggard.probes.probe import finding

MIN_RANKS: Final = 2
_SOCKETS: Final = re.compile(
    r"(?:\b([\w.-]{1,64}):\d+:\d+ )?(?:\[\d+\] )?NCCL INFO (?:Using network Socket|.*NET plugin Socket to comm)"
)
_NO_DEVICE: Final = re.compile(r"NET/IB ?: No device found")
_FAILED: Final = re.compile(r"Test (?:NCCL|CUDA) failure|NCCL WARN|Segmentation fault|out of memory", re.IGNORECASE)
_STOPPED: Final = re.compile(r"TIME LIMIT|CANCELLED|[Tt]imed? ?out|Killed|Terminated|\^C|SIGINT|SIGTERM")


def recognise_tests(content: FileContent) -> bool:
    return is_tests_output(content.text[: 1 << 20])


def judge_tests(content: FileContent, hardware: KnownHardware) -> FileJudgement:
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
        fix="If the nodes have RDMA, find out why NCCL does not see it: ibv_devinfo in the job's container, "
        "NCCL_IB_HCA, NCCL_IB_DISABLE, and the limit of locked memory.",
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


NCCL_TESTS = FileFormat("nccl-tests", recognise_tests, judge_tests, holds_others=True, shares=True)


_WORD: Final = re.compile(r"(?:NCCL (?:INFO|WARN|ATTN|DIAG|TRACE|CALL|version)|RCCL version) ")
_DEVICES: Final = re.compile(r"NET/IB : Using \[0\]")
_SEARCHED_MATCHES: Final = 256
_LINE_CHARACTERS: Final = 2048


def recognise_log(content: FileContent) -> bool:
    """Looks for a line that names its host and process, or begins with NCCL's own words. Prose does neither."""
    heads = PrefixCache()
    found = ((piece, match) for piece in content.pieces() for match in _WORD.finditer(piece))
    return any(_is_nccl(piece, match, heads) for piece, match in itertools.islice(found, _SEARCHED_MATCHES))


def _is_nccl(text: str, match: re.Match[str], heads: PrefixCache) -> bool:
    start = text.rfind("\n", max(0, match.start() - _LINE_CHARACTERS), match.start()) + 1
    if start == match.start():
        return True
    lines = lines_in(text[max(start, match.start() - _LINE_CHARACTERS) : match.end()], heads)
    return any(line.writer != NO_WRITER for line in lines)


def read_hardware_of_log(content: FileContent) -> KnownHardware:
    """Finds RDMA where NCCL lists RDMA devices. That it lists none does not prove that the machine has none."""
    return KnownHardware(rdma=True if any(map(_DEVICES.search, content.pieces())) else None)


def judge_logs_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files as the log of one job: NCCL_DEBUG_FILE makes a file for each process."""
    reader = NcclLogReader()
    for content in contents:
        for piece in content.pieces():
            reader.feed(piece)
        reader.end()
    judgement = judge_nccl_log(reader.log(), HardwareFacts(rdma=hardware.rdma, gpus=hardware.gpus))
    return FileJudgement(judgement.findings, judgement.facts, judgement.gaps)


NCCL_LOG = FileFormat(
    "NCCL log", recognise_log, None, read_hardware_of_log, judge_logs_together, end_matters=True, holds_others=True
)


_HEAD: Final = re.compile(r"^(?:NCCL|RCCL) version \d[^\n]{0,120}compiled with", re.MULTILINE)
_SUMMARY: Final = re.compile(r"^Job summary\n=+", re.MULTILINE)
_GROUP: Final = re.compile(r"^ {1,8}(\d+) +\d+ +\S+ +\S+ +(\d+) +\d+ +([A-Z]+) +([A-Z_]+)", re.MULTILINE)
_COMMUNICATOR: Final = re.compile(r"^#(\d+)-\d+ \([0-9a-f:]+\) ([A-Z_]+)$")
_PROCESS: Final = r"GPUs? (\S+) managed by process (\d+) on node (\S+)"
_RANK: Final = re.compile(
    rf"^ *Rank (\d{{1,7}})(?: has launched up to operation (\d+)| has not launched.*?)? -- {_PROCESS}"
)
_MISSING_COMMA: Final = re.compile(r'("nvml_dev": -?\d+)(\s+"status": \{)')
_DEAD: Final = re.compile(r"^ *Process (\d+) on node (\S+) managing GPU")
_MAX_BEHIND_SHARE: Final = 0.5
_MAX_RANKS: Final = 1 << 20
_LOOK: Final = "Look at that process while it is there: `py-spy dump --pid PID`, its log, and its host's kernel log."
_AGAIN: Final = "Ask RAS again after ten seconds: ranks that are behind each time hang, or are slow."


class _Accused(NamedTuple):
    rank: int
    host: str
    pid: str
    line: str


def recognise_ras(content: FileContent) -> bool:
    beginning = content.text[: 1 << 16]
    return _HEAD.search(beginning) is not None and _SUMMARY.search(beginning) is not None


def judge_ras(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = content.text
    sizes = {group: int(size) for group, size, _, _ in _GROUP.findall(text)}
    world = max(sizes.values(), default=0)
    missing: dict[int, _Accused] = {}
    behind: dict[int, _Accused] = {}
    dead = {(host, pid) for pid, host in _dead(text)}
    group, state = "", ""
    for line in text.split("\n"):
        if head := _COMMUNICATOR.match(line.strip()):
            group, state = head[1], head[2]
        elif (found := _RANK.match(line)) and sizes.get(group) == world:
            kept = missing if state == "INCOMPLETE" else behind
            kept.setdefault(int(found[1]), _Accused(int(found[1]), found[5], found[4], line.strip()))
    findings = tuple(_findings(missing.values(), behind.values(), dead, world))
    facts = {"ranks": world, "states": sorted({state for _, _, _, state in _GROUP.findall(text)})}
    return FileJudgement(findings, facts, "" if sizes else "it lists no communicator")


def _dead(text: str) -> Iterator[tuple[str, str]]:
    """The processes that RAS has given up: those listed under DEAD."""
    _, found, rest = text.partition("\nDEAD\n")
    for line in rest.split("\n")[:4096] if found else ():
        if process := _DEAD.match(line):
            yield process[1], process[2]
        elif not line.strip() or line.startswith("#"):
            return


def _findings(
    missing: Iterable[_Accused], behind: Iterable[_Accused], dead: set[tuple[str, str]], world: int
) -> Iterator[Finding]:
    gone = list(missing)
    lost = [it for it in gone if (it.host, it.pid) in dead]
    silent = [it for it in gone if it not in lost]
    late = list(behind)
    if lost:
        yield _finding("JOB_KILLED", lost, "cannot be reached any more: RAS calls it dead", Severity.CRITICAL, _LOOK)
    if silent:
        text = "does not answer RAS: its process is gone, stopped, or its host cannot be reached"
        yield _finding("JOB_COLLECTIVE_TIMEOUT", silent, text, Severity.CRITICAL, _LOOK)
    if late and len(late) <= _MAX_BEHIND_SHARE * world:
        text = "launched fewer collectives than the others when RAS looked"
        yield _finding("RANK_LATE", late, text, Severity.WARNING, _AGAIN)


def _finding(code: str, ranks: list[_Accused], summary: str, severity: Severity, fix: str) -> Finding:
    hosts = sorted({it.host for it in ranks})
    on = f" on {hosts[0]}" if len(hosts) == 1 and hosts[0] else ""
    return finding(
        code,
        ranks_text(it.rank for it in ranks) + on,
        summary,
        evidence={
            "line": ranks[0].line[:300],
            "host": hosts[0] if len(hosts) == 1 else None,
            "pids": [it.pid for it in ranks[:16]],
            ACCUSED: sorted(it.rank for it in ranks)[:4096],
        },
        fix=fix,
        commands=("py-spy dump --pid PID",) if severity is Severity.CRITICAL else ("ncclras -v",),
        severity=severity,
    )


def recognise_ras_json(content: FileContent) -> bool:
    head = content.text[: 1 << 16]
    if '"communicators"' not in head or '"ccl_version"' not in head.replace("nccl_", "ccl_").replace("rccl_", "ccl_"):
        return False
    return bool(_communicators(content))


def _communicators(content: FileContent) -> list[dict[str, Any]]:
    """NCCL 2.28.7 and 2.28.9 leave out a comma where they list ranks that are missing."""
    whole = FileContent.of_text(_MISSING_COMMA.sub(r"\1,\2", content.text))
    return [it for tree in documents(whole) for it in list_of(tree, "communicators") if isinstance(it, dict)]


def judge_ras_json(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    communicators = _communicators(content)
    world = max(communicators, key=_size, default={})
    members = [_member(it) for it in list_of(world, "missing_ranks")]
    dead = {
        (text_of(it, "host"), text_of(it, "pid"))
        for it in list_of(world, "missing_ranks")
        if isinstance(it, dict) and isinstance(it.get("status"), dict) and it["status"].get("considered_dead") is True
    }
    counts = {rank.rank: count for rank, count in map(_counted, list_of(world, "ranks"))}
    usual = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    behind = [_member(it) for it in list_of(world, "ranks") if _counted(it)[1] < usual]
    findings = tuple(_findings((it for it in members if it.rank >= 0), behind, dead, _size(world)))
    return FileJudgement(findings, {"ranks": _size(world), "communicators": len(communicators)})


def _size(communicator: dict[str, Any]) -> int:
    size = communicator.get("size")
    return size if isinstance(size, int) and 0 <= size <= _MAX_RANKS else 0


def _member(tree: Any) -> _Accused:
    rank = text_of(tree, "rank")
    pid = text_of(tree, "pid")
    number = int(rank) if rank.isdecimal() and len(rank) < 8 else -1
    return _Accused(number, text_of(tree, "host"), pid, f'"pid": {pid}')


def _counted(tree: Any) -> tuple[_Accused, int]:
    counts = tree.get("collective_counts") if isinstance(tree, dict) else None
    values = counts.values() if isinstance(counts, dict) else ()
    return _member(tree), sum(value for value in values if isinstance(value, int))


RAS_REPORT: Final = FileFormat("RAS report", recognise_ras, judge_ras)
RAS_REPORT_JSON: Final = FileFormat("RAS report (JSON)", recognise_ras_json, judge_ras_json)
