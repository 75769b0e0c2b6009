"""The formats of NCCL's own output: `NCCL log` and `nccl-tests`.

nccl-tests: wrong results, ranks that ran alone and a test that hung are judged: what bandwidth is right depends on the
machine, and a comparison tells it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

import msgspec

from laggard.diagnose.failing_lines import ends_well
from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.rules import patterns, table
from laggard.diagnose.settings_compared import SettingsReader
from laggard.kit.words import counted
from laggard.locate.shares import HALF
from laggard.model import Finding, Severity
from laggard.nccl.log.lines import NO_WRITER, PrefixCache, lines_in
from laggard.nccl.log.reader import NcclLogReader
from laggard.nccl.tests_output import TestsOutput, is_tests_output, parse_tests_output
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log

_P: Final = patterns("paste_forms", "nccl_")

MIN_RANKS: Final = 2
_REACHED: Final = "best_busbw_bytes_per_second"
_MIN_OF_LINK: Final = 0.75
"""The share of what one link carried that nccl-tests reaches: halfway between one port of a pair and both."""
_SAYS: Final = table("nccl_tests").sections


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
    if output.ranks < MIN_RANKS or _P["failed"].search(text) or not _P["stopped"].search(text):
        return FileJudgement(unknown=unknown)
    found = _SAYS["hung"].found({"ranks": output.ranks, "hosts": list(output.hosts[:16])})
    return FileJudgement((found,), {"ranks": output.ranks, "nodes": output.nodes})


def _wrong_results(output: TestsOutput) -> Iterator[Finding]:
    wrong = [row for row in output.rows if row.wrong]
    if not wrong and not output.out_of_bounds:
        return
    at = f" at {counted(len(wrong), 'size')}" if wrong else " (out of bounds values: FAILED)"
    hosts = list(output.hosts[:16])
    sizes = [row.size_bytes for row in wrong[:16]]
    evidence = {"sizes_bytes": sizes, "wrong": sum(row.wrong or 0 for row in wrong), "hosts": hosts or None}
    yield _SAYS["wrong"].found(evidence, on=f" on {hosts[0]}" if len(hosts) == 1 else "", at=at)


def _alone(output: TestsOutput) -> Iterator[Finding]:
    if not output.alone or any(row.busbw for row in output.rows):
        return
    evidence = {"processes_alone": output.alone, "hosts": list(output.hosts[:16])}
    yield _SAYS["alone"].found(evidence, processes=counted(output.alone, "process"))


def _by_sockets(output: TestsOutput, text: str) -> Iterator[Finding]:
    """Tells of TCP where NCCL's own lines stand beside the table, and the test is not known to be of one node."""
    found = _P["sockets"].search(text)
    if not found or output.nodes == 1 or not output.rows:
        return
    best = max(row.busbw for row in output.rows)
    because = ": NET/IB : No device found" if _P["no_device"].search(text) else ""
    yield _SAYS["sockets"].found(
        {"best_busbw_bytes_per_second": best},
        on=f" on {found[1]}" if found[1] else "",
        because=because,
        best=f"{best / 1e9:.3g}",
    )


def _facts(output: TestsOutput) -> dict[str, object]:
    best = max(output.rows, key=lambda row: row.busbw)
    return {
        "operation": output.operation,
        "ranks": output.ranks,
        "nodes": output.nodes,
        "sizes": len(output.rows),
        _REACHED: best.busbw,
        "at_size_bytes": best.size_bytes,
    }


def compared(facts: Mapping[str, Mapping[str, object]]) -> list[Finding]:
    """Returns what tests in the same text or in several reached beside one another. `facts`: by path."""
    return [*_slower_runs(facts), *_slower_than_link(facts)]


def _slower_than_link(facts: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    """What nccl-tests reached between nodes beside what one link carried: several links carry more together."""
    tested = max(facts.values(), key=lambda it: cast(float, it.get("link_gigabits", 0.0)), default={})
    link = cast(float, tested.get("link_gigabits", 0.0))
    runs = [it for it in facts.values() if it.get(_REACHED) and it["nodes"] != 1]
    best = max((cast(float, it[_REACHED]) * 8e-9 for it in runs), default=0.0)
    if 0 < best < _MIN_OF_LINK * link:
        shown = {"line": tested["link_line"], "reached_gigabits": round(best, 3), "link_gigabits": link}
        found = table("numbers").sections["slower_than_its_link"].found
        yield found(shown, reached=f"{best:.3g}", share=f"{100 * best / link:.0f}", rate=f"{link:.3g}")


def _slower_runs(facts: Mapping[str, Mapping[str, object]]) -> list[Finding]:
    """What one file's test reached beside another's of the same operation on as many nodes, as far as both tell: less
    than half at the same size."""
    runs = {path: it for path, it in facts.items() if it.get(_REACHED)}
    if len(runs) != 2:
        return []
    (slow, its), (fast, other) = sorted(runs.items(), key=lambda run: cast(float, run[1][_REACHED]))
    same = all(its[name] == other[name] or not (its[name] and other[name]) for name in ("operation", "ranks", "nodes"))
    rates = [cast(float, it[_REACHED]) for it in (its, other)]
    if not same or its["at_size_bytes"] != other["at_size_bytes"] or rates[0] >= HALF * rates[1]:
        return []
    return [
        _SAYS["slower"].found(
            {"slow": slow, "fast": fast},
            slow=os.path.basename(slow),
            fast=os.path.basename(fast),
            reached=f"{rates[0] / 1e9:.3g}",
            other=f"{rates[1] / 1e9:.3g}",
        )
    ]


NCCL_TESTS = FileFormat("nccl-tests", recognise_tests, judge_tests, holds_others=True, shares=True)


_SEARCHED_MATCHES: Final = 256
_LINE_CHARACTERS: Final = 2048


def recognise_log(content: FileContent) -> bool:
    """Looks for a line that names its host and process, or begins with NCCL's own words. Prose does neither."""
    heads = PrefixCache()
    found = ((piece, match) for piece in content.pieces() for match in _P["word"].finditer(piece))
    return any(_is_nccl(piece, match, heads) for piece, match in itertools.islice(found, _SEARCHED_MATCHES))


def _is_nccl(text: str, match: re.Match[str], heads: PrefixCache) -> bool:
    start = text.rfind("\n", max(0, match.start() - _LINE_CHARACTERS), match.start()) + 1
    if start == match.start():
        return True
    lines = lines_in(text[max(start, match.start() - _LINE_CHARACTERS) : match.end()], heads)
    return any(line.writer != NO_WRITER for line in lines)


def read_hardware_of_log(content: FileContent) -> KnownHardware:
    """Finds RDMA where NCCL lists RDMA devices. That it lists none does not prove that the machine has none."""
    return KnownHardware(rdma=True if any(map(_P["devices"].search, content.pieces())) else None)


def judge_logs_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files as the log of one job: NCCL_DEBUG_FILE makes a file for each process."""
    reader, settings, piece = NcclLogReader(), SettingsReader(), ""
    for content in contents:
        for piece in content.pieces():
            reader.feed(piece)
            settings.feed(piece, content.host)
        reader.end()
    judgement = judge_nccl_log(reader.log(), HardwareFacts(rdma=hardware.rdma, gpus=hardware.gpus))
    findings = with_settings(judgement.findings, settings, ends_well(piece))
    gaps = judgement.gaps if len(findings) == len(judgement.findings) else ""  # a difference answers what a gap asks
    return FileJudgement(findings, judgement.facts, gaps)


def with_settings(findings: tuple[Finding, ...], settings: SettingsReader, ended_well: bool) -> tuple[Finding, ...]:
    """The findings, and those differences of settings whose kind is none of theirs. What makes a run slow that ended
    well is a warning."""
    codes = {found.code for found in findings}
    if ended_well:
        findings = tuple(msgspec.structs.replace(found, severity=Severity.WARNING) for found in findings)
    return (*findings, *(each for each in settings.findings() if each.code not in codes))


NCCL_LOG = FileFormat(
    "NCCL log",
    recognise_log,
    None,
    read_hardware_of_log,
    judge_logs_together,
    end_matters=True,
    holds_others=True,
    takes=lambda line: False,
)
