"""The formats of a profiler of a run, TraceML: which rank is slow in which phase.

TraceML: final_summary.json and final_summary.txt, or its box at the end of a job's output. Source: traceml-ai 0.3.6 and
0.5.0 (schemas 1.7 and 1.9), traceml_ai/reporting/SCHEMA.md and final.py. Thresholds are TraceML's own: a tenth of a
step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    documents,
    list_of,
    text_of,
)
from laggard.diagnose.rules import table
from laggard.kit.words import ascii_line, seconds_text
from laggard.model import Finding

_MAX_ISSUES: Final = 64
_KEYS: Final = ('"primary_diagnosis"', '"step_time"')
_TITLE: Final = "TraceML Run Summary"
_VERDICT = re.compile(r"Verdict: (?P<status>[A-Z0-9 -]{1,40}?) {0,2}(?:/ |\()(?P<severity>CRITICAL|WARNING|INFO)\b")
_RANK = re.compile(r"\bNext: .{0,200}?\br(\d{1,7})\b")
_WORDS: Final = table("traceml").sections
_STRAGGLERS: Final = {kind: row for kind, row in _WORDS.items() if row.code == "RANK_LATE"}
_BOUND: Final = _WORDS.keys() - _STRAGGLERS.keys()


def recognise_traceml(content: FileContent) -> bool:
    return all(key in content.document for key in _KEYS) and any(map(_is_summary, documents(content)[:1]))


def _is_summary(tree: Any) -> bool:
    return isinstance(tree.get("primary_diagnosis"), dict) and isinstance(tree.get("step_time"), dict)


def judge_traceml(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    tree: dict[str, Any] = next(filter(_is_summary, documents(content)), {})
    steps = tree.get("step_time", {})
    kinds = [text_of(issue, "kind") for issue in list_of(steps, "issues")[:_MAX_ISSUES]]
    facts = {"schema": text_of(tree, "schema_version"), "step_time": kinds, "run": _mapping(tree.get("meta"))}
    enough = set(kinds) - {"NO_DATA", "WARMUP", "INCOMPLETE_DATA"}
    return FileJudgement(tuple(_of_issues(steps)), facts, "" if enough else "TraceML had too few steps to judge")


def _of_issues(steps: dict[str, Any]) -> Iterator[Finding]:
    rows = _mapping(_mapping(steps.get("groups")).get("rows"))
    whole = _mapping(steps.get("global"))
    for issue in list_of(steps, "issues")[:_MAX_ISSUES]:
        kind, ranks = text_of(issue, "kind"), [it for it in list_of(issue, "ranks") if type(it) is int and it >= 0]
        if kind in _STRAGGLERS and ranks:
            own, metric = _mapping(rows.get(str(ranks[0]))), _STRAGGLERS[kind].more["metric"]
            median = _mapping(_mapping(whole.get("median")).get(metric)).get("value")
            host = ascii_line(text_of(own.get("identity"), "hostname"))[:64]
            yield _straggler(kind, ranks[0], _times(_mapping(own.get("metrics")).get(metric), median), host)
        elif kind in _BOUND and text_of(issue, "severity") != "info":
            yield _bound(kind, issue.get("share_pct"))


def _mapping(tree: object) -> dict[str, Any]:
    return tree if isinstance(tree, dict) else {}


def _times(own: Any, median: Any) -> str:
    """`210 ms a step, the median rank 3 ms`; empty where one was not measured."""
    if not all(isinstance(it, (int, float)) and 0 <= it < 1e12 for it in (own, median)):
        return ""
    return f" ({seconds_text(own / 1e3)} a step, the median rank {seconds_text(median / 1e3)})"


def _straggler(kind: str, rank: int, times: str, host: str) -> Finding:
    evidence = {"line": kind, "rank": rank, **({"host": host} if host else {})}
    return _WORDS[kind].found(evidence, who=f"rank {rank}{f' on {host}' if host else ''}", times=times)


def _bound(kind: str, share: Any) -> Finding:
    much = f"{share:.0%} of each step" if isinstance(share, (int, float)) and 0 <= share <= 1 else "much of each step"
    return _WORDS[kind].found({"line": kind}, much=much)


def recognise_traceml_text(content: FileContent) -> bool:
    if content.text.lstrip()[:1] == "{":  # the JSON has the text as a field
        return False
    return any(_TITLE in piece and _VERDICT.search(piece) is not None for piece in content.pieces())


def judge_traceml_text(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    found: dict[str, Finding] = {}
    for piece in content.pieces():
        for box in piece.split(_TITLE)[1:]:
            text = " ".join(line.strip("| \t") for line in box[: 1 << 14].split("\n")[:24])
            verdict, rank = _VERDICT.search(text), _RANK.search(text)
            kind = re.sub("[ -]", "_", verdict["status"]) if verdict else ""
            if kind in _STRAGGLERS and rank:
                found[kind] = _straggler(kind, int(rank[1]), "", "")
            elif verdict and kind in _BOUND and verdict["severity"] != "INFO":
                found[kind] = _bound(kind, None)
    return FileJudgement(tuple(found.values()), {"looked_for": "looked for the verdict of TraceML's summary"})


TRACEML: Final = FileFormat("TraceML summary", recognise_traceml, judge_traceml)
TRACEML_TEXT: Final = FileFormat(
    "TraceML summary as text", recognise_traceml_text, judge_traceml_text, end_matters=True, shares=True
)
