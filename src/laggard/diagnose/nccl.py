"""The formats of NCCL's own output: `NCCL log` and `nccl-tests`.

nccl-tests: wrong results, ranks that ran alone and a test that hung are judged: what bandwidth is right depends on the
machine, and a comparison tells it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, cast

import msgspec

from laggard.diagnose.failing_lines import ends_well
from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.parts import bodies_of
from laggard.diagnose.rules import patterns, table
from laggard.diagnose.settings_compared import SettingsReader
from laggard.kit.words import counted, listed
from laggard.locate.shares import HALF
from laggard.model import Finding, Severity
from laggard.nccl.log.lines import NO_WRITER, PrefixCache, lines_in
from laggard.nccl.log.reader import NcclLogReader
from laggard.nccl.tests_output import TestsOutput, is_tests_output, parse_tests_output
from laggard.probes.active.measuring.rates import ActiveThresholds
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log
from laggard.rings.judge import MIN_MEASURED, severity_of_ratio

_P: Final = patterns("paste_forms", "nccl_")

MIN_RANKS: Final = 2
_ALIKE: Final = ("operation", "ranks", "nodes", "at_size_bytes")
_REACHED: Final = "best_busbw_bytes_per_second"
_MIN_OF_LINK: Final = 0.75
"""The share of what one link carried that nccl-tests reaches: halfway between one port of a pair and both."""
_SAYS: Final = table("nccl_tests").sections


def recognise_tests(content: FileContent) -> bool:
    text = content.text[: 1 << 20]
    return is_tests_output(text) or _P["average"].search(text) is not None


def judge_tests(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    output, runs = parse_tests_output(content.text), tuple(slow_runs(runs_of(content.text)))
    if not output.rows:
        return FileJudgement(runs) if runs else _without_rows(output, content.text)
    unchecked = any(row.wrong is None for row in output.rows)
    unknown = "results were not checked: run nccl-tests with -c 1" if unchecked else ""
    return FileJudgement(
        (*_wrong_results(output), *_alone(output), *_by_sockets(output, content.text), *runs), _facts(output), unknown
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
    """What one file's test reached beside another's of the same operation on as many nodes and at the same size, as far
    as both tell."""
    runs = [(os.path.basename(path), it) for path, it in facts.items() if it.get(_REACHED)]
    return list(slow_runs([_of_file(name, it) for name, it in runs]))


def _of_file(name: str, facts: Mapping[str, object]) -> Run:
    return Run(name, frozenset((name,)), cast(float, facts[_REACHED]), tuple(facts[it] for it in _ALIKE))


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


CRITICAL: Final = ActiveThresholds().critical_ratio
_MAX_NAMED: Final = 4
_MAX_RUNS: Final = 1024


class Run(NamedTuple):
    """`words`: those of its head, and its hosts. `busbw` in bytes per second. `test`: its operation, hosts, ranks and
    size, each false where it is not known. Runs that differ in one reach different rates by design."""

    head: str
    words: frozenset[str]
    busbw: float
    test: tuple[object, ...] = ()


def runs_of(text: str) -> list[Run]:
    """Returns the runs of a text that measured something."""
    for head in (_P["run"], _P["begins"]):
        runs = [_run(found[1].strip(), body) for found, body in bodies_of(head, text, _MAX_RUNS)]
        if len(measured := [run for run in runs if run.busbw]) > 1:
            return measured
    return []


def _run(head: str, body: str) -> Run:
    output, average = parse_tests_output(f"# {head}\n{body}"), _P["average"].search(body)
    best = max(output.rows, key=lambda row: row.busbw, default=None)
    busbw = float(average[1]) * 1e9 if average else best.busbw if best else 0.0
    test = (output.operation, len(output.hosts), output.ranks, best.size_bytes if best else 0)
    words = head.split()
    names = [part for word in words for part in re.split(r"[,:=]", word)]
    named = f"the run on {','.join(output.hosts)}" if head.startswith("nThread") and output.hosts else head
    return Run(named, frozenset((*words, *names, *output.hosts)) - {""}, busbw, test)


def slow_runs(runs: Sequence[Run]) -> Iterator[Finding]:
    """Of runs of one test those below the widest gap are slow: a fault makes nothing faster. Of two it is one that
    reaches less than half, of more what is critical between devices. Most are slow only for a reason that they have in
    common."""
    usual_test = [
        (Counter(filter(None, told)).most_common(1) or [(0, 0)])[0][0]
        for told in zip(*(run.test for run in runs), strict=True)
    ]
    alike = [run for run in runs if all(not own or own == it for own, it in zip(run.test, usual_test, strict=True))]
    ordered = sorted(alike, key=lambda run: -run.busbw)
    gaps = [(after.busbw / before.busbw, place) for place, (before, after) in enumerate(pairwise(ordered), 1)]
    ratio, place = min(gaps, default=(1.0, 0))
    fine, lost = ordered[:place], ordered[place:]
    if ratio < (HALF if len(ordered) < MIN_MEASURED else CRITICAL) and (len(lost) <= len(fine) or _why(lost, fine)):
        worst, usual = min(lost, key=lambda run: run.busbw), min(fine, key=lambda run: run.busbw)
        yield (
            table("nccl_tests")
            .sections["slower"]
            .found(
                {
                    "line": worst.head[:300],
                    "slow": [run.head for run in lost[:16]],
                    "fast": [run.head for run in fine[:16]],
                },
                severity_of_ratio(worst.busbw / usual.busbw),
                slow=_why(lost, fine) or listed([run.head for run in lost], _MAX_NAMED),
                reached=f"{worst.busbw / 1e9:.3g}",
                other=f"{usual.busbw / 1e9:.3g}",
                fast=fine[0].head if len(fine) == 1 else f"the {len(fine)} others, which have not that in common",
            )
        )


def _why(slow: Sequence[Run], fast: Sequence[Run]) -> str:
    """What all slow runs have and no fast one; else the two sides between which they run; empty: there is neither."""
    common = frozenset.intersection(*(run.words for run in slow)) - frozenset.union(*(run.words for run in fast))
    if len(slow) == 1 and (len(common) != 1 or slow[0].head in common):
        return slow[0].head
    if common:
        with_them = f"{counted(len(slow), 'run')}, each with " if len(slow) > 1 else "the run with "
        return with_them + listed(sorted(common), _MAX_NAMED)
    sides = _sides(slow, fast)
    between = " and ".join(listed(sorted(side), _MAX_NAMED) for side in sides)
    return f"each run between {between}" if sides else ""


def _sides(slow: Sequence[Run], fast: Sequence[Run]) -> list[frozenset[str]]:
    """The two groups of hosts that fast runs join, where each slow run has hosts of both."""
    of_all = frozenset.intersection(*(run.words for run in (*slow, *fast)))
    sides: list[frozenset[str]] = []
    for run in fast:
        hosts = frozenset(word for word in run.words - of_all if re.fullmatch(r"[A-Za-z][\w.-]*\d[\w.-]*", word))
        joined = [side for side in sides if side & hosts]
        sides = [side for side in sides if side not in joined] + [hosts.union(*joined)]
    sides = [side for side in sides if side]
    crosses = len(sides) == 2 and all(all(run.words & side for side in sides) for run in slow)
    return sides if crosses else []
