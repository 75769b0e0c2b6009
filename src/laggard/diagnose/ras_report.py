"""The formats `RAS report` and `RAS report (JSON)`: what NCCL's and RCCL's RAS answer, saved by hand or by a manager.

The text's form is that of NCCL 2.24 to 2.30 and RCCL 2.28, src/ras/client_support.cc; the JSON's that of NCCL 2.28.7,
which RCCL's is too (ROCm/rocm-systems 2386d61, projects/rccl/src/ras/client_support.cc), with more operations. Files
without a secondary hash are read as well. A report is one look: that ranks have launched fewer
collectives is a warning, since they may be a moment late.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import ACCUSED, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.json_document import documents, list_of, text_of
from laggard.model import Finding, Severity
from laggard.probes.probe import finding
from laggard.text.words import ranks_text

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


def recognise(content: FileContent) -> bool:
    beginning = content.text[: 1 << 16]
    return _HEAD.search(beginning) is not None and _SUMMARY.search(beginning) is not None


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
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


def recognise_json(content: FileContent) -> bool:
    head = content.text[: 1 << 16]
    if '"communicators"' not in head or '"ccl_version"' not in head.replace("nccl_", "ccl_").replace("rccl_", "ccl_"):
        return False
    return bool(_communicators(content))


def _communicators(content: FileContent) -> list[dict[str, Any]]:
    """NCCL 2.28.7 and 2.28.9 leave out a comma where they list ranks that are missing."""
    whole = FileContent.of_text(_MISSING_COMMA.sub(r"\1,\2", content.text))
    return [it for tree in documents(whole) for it in list_of(tree, "communicators") if isinstance(it, dict)]


def judge_json(content: FileContent, hardware: KnownHardware) -> FileJudgement:
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


RAS_REPORT: Final = FileFormat("RAS report", recognise, judge)
RAS_REPORT_JSON: Final = FileFormat("RAS report (JSON)", recognise_json, judge_json)
