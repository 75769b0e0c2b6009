"""The formats `RAS report` and `RAS report (JSON)`: what NCCL's RAS subsystem says of a job's ranks.

The text's form is that of NCCL 2.24 to 2.30 and RCCL 2.28, src/ras/client_support.cc; the JSON's that of NCCL 2.28.7,
which RCCL's is too (ROCm/rocm-systems 2386d61, projects/rccl/src/ras/client_support.cc), with more operations. Files
without a secondary hash are read as well.

A report is one look: that ranks have launched fewer collectives is a warning, since they may be a moment late. It lists
the ranks of the smaller group, whichever that is: the counts tell who is behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from laggard.diagnose.rules import table
from laggard.kit.words import counted, ranks_text
from laggard.locate.shares import HALF
from laggard.model import Finding

_HEAD: Final = re.compile(r"^(?:NCCL|RCCL) version \d[^\n]{0,120}compiled with", re.MULTILINE)
_SUMMARY: Final = re.compile(r"^Job summary\n=+", re.MULTILINE)
_GROUP: Final = re.compile(r"^ {1,8}(\d+) +\d+ +\S+ +\S+ +(\d+) +\d+ +([A-Z]+) +([A-Z_]+)", re.MULTILINE)
_COMMUNICATOR: Final = re.compile(r"^#(\d+)-\d+ \([0-9a-f:]+\) ([A-Z_]+)$")
_OPERATION: Final = re.compile(r"^ *Communicator ranks have different (\w{1,40}) operation counts")
_LAUNCHED: Final = r"(?: (?:has|have) launched up to operation (\d{1,18})| (?:has|have) not launched.*?)"
_COUNT: Final = re.compile(rf"^ *(\d{{1,7}}) ranks?{_LAUNCHED}$")
_PROCESS: Final = r"GPUs? (\S+) managed by process (\d+) on node (\S+)"
_RANK: Final = re.compile(rf"^ *Rank (\d{{1,7}})(?P<launched>{_LAUNCHED})? -- {_PROCESS}")
_MISSING_COMMA: Final = re.compile(r'("nvml_dev": -?\d+)(\s+"status": \{)')
_DEAD: Final = re.compile(r"^ *Process (\d+) on node (\S+) managing GPU")
_MAX_RANKS: Final = 1 << 20
_WORDS: Final = table("hangs").sections


class _Member(NamedTuple):
    rank: int
    host: str
    pid: str
    line: str


class _Launched(NamedTuple):
    """Ranks that have launched as many collectives. `ranks`: how many they are; `listed`: those that are named."""

    operation: int
    ranks: int
    listed: tuple[_Member, ...]


def recognise_ras(content: FileContent) -> bool:
    beginning = content.text[: 1 << 16]
    return _HEAD.search(beginning) is not None and _SUMMARY.search(beginning) is not None


def judge_ras(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = content.text
    sizes = {group: int(size) for group, size, _, _ in _GROUP.findall(text)}
    world = max(sizes.values(), default=0)
    missing: list[_Member] = []
    counts: dict[str, dict[int, tuple[int, list[_Member]]]] = {}
    group, state, name, last = "", "", "", 0
    for line in text.split("\n"):
        if head := _COMMUNICATOR.match(line.strip()):
            group, state = head[1], head[2]
        elif operation := _OPERATION.match(line):
            name = operation[1]
        elif sizes.get(group) != world:
            continue
        elif told := _COUNT.match(line):
            last = int(told[2] or 0)
            counts.setdefault(name, {})[last] = int(told[1]), []
        elif found := _RANK.match(line):
            member = _Member(int(found[1]), found[6], found[5], line.strip())
            if state == "INCOMPLETE":
                missing.append(member)
            else:
                own = int(found[3] or 0) if found["launched"] else last
                counts.setdefault(name, {}).setdefault(own, (0, []))[1].append(member)
    uneven = {name: _groups(of_name) for name, of_name in counts.items()}
    dead = {(host, pid) for pid, host in _dead(text)}
    facts = {"ranks": world, "states": sorted({state for _, _, _, state in _GROUP.findall(text)})}
    found_in = (*_of_missing(missing, dead), *_of_counts(uneven))
    return FileJudgement(found_in, facts, "" if sizes else "it lists no communicator")


def _groups(counts: dict[int, tuple[int, list[_Member]]]) -> list[_Launched]:
    return [_Launched(operation, max(count, len(its)), tuple(its)) for operation, (count, its) in counts.items()]


def _dead(text: str) -> Iterator[tuple[str, str]]:
    """The processes that RAS has given up: those listed under DEAD."""
    _, found, rest = text.partition("\nDEAD\n")
    for line in rest.split("\n")[:4096] if found else ():
        if process := _DEAD.match(line):
            yield process[1], process[2]
        elif not line.strip() or line.startswith("#"):
            return


def _of_missing(missing: Sequence[_Member], dead: set[tuple[str, str]]) -> Iterator[Finding]:
    lost = [it for it in missing if (it.host, it.pid) in dead]
    silent = [it for it in missing if it not in lost]
    for kind, members in (("ras_dead", lost), ("ras_silent", silent)):
        if members:
            yield _WORDS[kind].found(_evidence(members), who=_named(members))


def _of_counts(uneven: dict[str, list[_Launched]]) -> Iterator[Finding]:
    """One finding for each operation: who is behind, or who alone is ahead; each rank once."""
    told: set[int] = set()
    for name, groups in uneven.items():
        most = max(groups, key=lambda it: it.operation)
        less = [it for it in groups if it.operation < most.operation]
        count, fewest = sum(it.ranks for it in less), max(less, key=lambda it: it.ranks, default=most)
        behind = [it for group in less for it in group.listed if it.rank not in told]
        few, many = fewest.operation, most.operation
        if count > HALF * (count + most.ranks):
            named = ranks_text(it.rank for it in most.listed) or counted(most.ranks, "rank")
            line = most.listed[0].line if most.listed else name
            yield _WORDS["ras_ahead"].found(
                {"line": line, "ahead": [it.rank for it in most.listed]},
                ranks=counted(count, "rank"),
                named=named,
                are="is" if most.ranks == 1 else "are",
                name=name,
                few=few,
                many=many,
            )
        elif behind:
            told |= {it.rank for it in behind}
            are = "is" if len(behind) == 1 else "are"
            who, evidence = _named(behind), _evidence(behind)
            found = _WORDS["ras_behind"].found
            yield found(evidence, who=who, are=are, others=most.ranks, name=name, few=few, many=many)


def _named(members: Sequence[_Member]) -> str:
    hosts = {it.host for it in members}
    host = next(iter(hosts))
    return ranks_text(it.rank for it in members) + (f" on {host}" if len(hosts) == 1 and host else "")


def _evidence(members: Sequence[_Member]) -> dict[str, object]:
    hosts = {it.host for it in members}
    return {
        "line": members[0].line[:300],
        "host": members[0].host if len(hosts) == 1 else None,
        "pids": [it.pid for it in members[:16]],
        ACCUSED: sorted(it.rank for it in members)[:4096],
    }


def recognise_ras_json(content: FileContent) -> bool:
    head = content.text[: 1 << 16]
    if '"communicators"' not in head or '"ccl_version"' not in head.replace("nccl_", "ccl_").replace("rccl_", "ccl_"):
        return False
    return bool(_communicators(content))


def _communicators(content: FileContent) -> list[dict[str, Any]]:
    """NCCL 2.28.7 and 2.28.9 leave out a comma where they list ranks that are missing."""
    whole = FileContent.of_text(_MISSING_COMMA.sub(r"\1,\2", content.document))
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
    counts: dict[int, tuple[int, list[_Member]]] = {}
    for member, count in map(_counted, list_of(world, "ranks")):
        counts.setdefault(count, (0, []))[1].append(member)
    found = (*_of_missing([it for it in members if it.rank >= 0], dead), *_of_counts({"collectives": _groups(counts)}))
    return FileJudgement(found, {"ranks": _size(world), "communicators": len(communicators)})


def _size(communicator: dict[str, Any]) -> int:
    size = communicator.get("size")
    return size if isinstance(size, int) and 0 <= size <= _MAX_RANKS else 0


def _member(tree: Any) -> _Member:
    rank = text_of(tree, "rank")
    pid = text_of(tree, "pid")
    number = int(rank) if rank.isdecimal() and len(rank) < 8 else -1
    return _Member(number, text_of(tree, "host"), pid, f'"pid": {pid}')


def _counted(tree: Any) -> tuple[_Member, int]:
    counts = tree.get("collective_counts") if isinstance(tree, dict) else None
    values = counts.values() if isinstance(counts, dict) else ()
    return _member(tree), sum(value for value in values if isinstance(value, int))


RAS_REPORT: Final = FileFormat("RAS report", recognise_ras, judge_ras)
RAS_REPORT_JSON: Final = FileFormat("RAS report (JSON)", recognise_ras_json, judge_ras_json)
