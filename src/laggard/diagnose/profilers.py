"""The formats of profilers of a run: TraceML's summary, and NCCL Inspector's log and metrics. They say which rank is
slow in which phase, or came last to collectives.

TraceML: final_summary.json and final_summary.txt, or its box at the end of a job's output. Source: traceml-ai 0.3.6 and
0.5.0 (schemas 1.7 and 1.9), traceml_ai/reporting/SCHEMA.md and final.py. Thresholds are TraceML's own: a tenth of a
step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    documents,
    list_of,
    text_of,
)
from laggard.kit.words import ascii_line, seconds_text
from laggard.model import Finding
from laggard.nccl import inspector
from laggard.probes.probe import finding

_MAX_ISSUES: Final = 64
_KEYS: Final = ('"primary_diagnosis"', '"step_time"')
_TITLE: Final = "TraceML Run Summary"
_VERDICT = re.compile(r"Verdict: (?P<status>[A-Z0-9 -]{1,40}?) {0,2}(?:/ |\()(?P<severity>CRITICAL|WARNING|INFO)\b")
_RANK = re.compile(r"\bNext: .{0,200}?\br(\d{1,7})\b")
_COMMANDS: Final = ("laggard healthcheck", "laggard run --record DIR ...")


class _Row(NamedTuple):
    """`metric`: the time of the slow rank that is shown beside the median rank's; `says` continues a sentence."""

    says: str
    metric: str
    fix: str


_STRAGGLERS: Final[dict[str, _Row]] = {
    "INPUT_STRAGGLER": _Row(
        "waits longer than the others for its input, and they wait for it in backward",
        "input_wait_ms",
        "Look at what its data loader reads: the storage and its cache, the workers' CPU time, what else runs there.",
    ),
    "COMPUTE_STRAGGLER": _Row(
        "computes forward longer than the others, and they wait for it in backward",
        "forward_ms",
        "Run `laggard healthcheck` on its machine (clocks, throttling, PCIe), and compare what its batches hold.",
    ),
    "H2D_STRAGGLER": _Row(
        "needs longer than the others to copy its input to the GPU, and they wait for it in backward",
        "h2d_ms",
        "Look at that GPU's PCIe link, at pinned memory and at the NUMA node that its process runs on.",
    ),
    "STRAGGLER": _Row(
        "comes late to backward, where the others wait for it, and no phase that was measured explains it: "
        "synchronization or unattributed work",
        "residual_ms",
        "Start the job under `laggard run`, which sees collectives too, and look at what only this rank does: logging, "
        "checkpoints, evaluation.",
    ),
}
_BOUND: Final = {
    "INPUT_BOUND": ("wait for their input", "Give the data loader more workers and prefetching, or the storage more "
                    "throughput."),
    "H2D_BOUND": ("copy their input to the GPU", "Pin the data loader's memory and copy asynchronously "
                  "(`non_blocking=True`)."),
    "RESIDUAL_HEAVY": ("do what is none of the phases that TraceML measures", "Look at logging, checkpoints, "
                       "validation and waits for the CPU; `laggard run` tells collectives apart."),
}  # fmt: skip


def recognise_traceml(content: FileContent) -> bool:
    return all(key in content.text for key in _KEYS) and any(map(_is_summary, documents(content)[:1]))


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
            own, metric = _mapping(rows.get(str(ranks[0]))), _STRAGGLERS[kind].metric
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
    row = _STRAGGLERS[kind]
    place = f" on {host}" if host else ""
    evidence = {"line": kind, "rank": rank, **({"host": host} if host else {})}
    return finding(
        "RANK_LATE", f"rank {rank}{place}", row.says + times, evidence=evidence, fix=row.fix, commands=_COMMANDS
    )


def _bound(kind: str, share: Any) -> Finding:
    doing, fix = _BOUND[kind]
    much = f"{share:.0%} of each step" if isinstance(share, (int, float)) and 0 <= share <= 1 else "much of each step"
    says = f"{doing} for {much}"
    return finding("STEP_TIME_LOST", "all ranks", says, evidence={"line": kind}, fix=fix, commands=_COMMANDS[1:])


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


_FIRST_LINES: Final = 8
_GPU = re.compile(r'\bnode="([^"]{1,64})",gpu="([^"]{1,64})"')


def recognise_inspector_log(content: FileContent) -> bool:
    return any(inspector.is_inspector_line(line) for line in content.text[: 1 << 18].split("\n")[:_FIRST_LINES])


def judge_inspector_logs_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files of all processes of a job at once: who came last shows in all of them only."""
    log = inspector.InspectorLog()
    for content in contents:
        for piece in content.pieces():
            log.feed(piece)
        log.end()
    arrivals = inspector.last_arrivals(log)
    facts = {
        "records": log.records,
        "torn_lines": log.torn,
        "communicators": arrivals.communicators,
        "collectives_compared": arrivals.compared,
        "ranks": arrivals.ranks,
        "ranks_seen": arrivals.ranks_seen,
    }
    return FileJudgement(tuple(map(_finding, arrivals.late)), facts, "; ".join(inspector.gaps_of(log, arrivals)))


def _finding(late: inspector.LastArrival) -> Finding:
    member = late.member
    host = ascii_line(member.host)
    return finding(
        "RANK_LATE",
        f"rank {late.rank} on {host}",
        f"last to come to {late.times_last} of {late.collectives} collectives, by "
        f"{seconds_text(late.late_microseconds / 1e6)}: the others wait for it",
        evidence={
            "host": host,
            "pid": member.pid,
            "communicator": ascii_line(member.communicator),
            "rank_in_communicator": member.rank,
            "peers_running_microseconds": late.running_microseconds,
            "own_wait_microseconds": round(late.own_wait_microseconds, 1),
            "peers_wait_microseconds": round(late.peers_wait_microseconds, 1),
        },
        fix="Run `laggard healthcheck` on its machine, and start the job under `laggard run` to see in which phase "
        "it is slow.",
    )


def recognise_inspector_metrics(content: FileContent) -> bool:
    return inspector.INSPECTOR_METRIC.search(content.text[: 1 << 18]) is not None


def judge_inspector_metrics(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    gpus = {found for piece in content.pieces() for found in _GPU.findall(piece)}
    samples = sum(len(inspector.INSPECTOR_METRIC.findall(piece)) for piece in content.pieces())
    return FileJudgement((), {"samples": samples, "gpus": len(gpus)}, inspector.NO_NUMBERS)


INSPECTOR_LOG = FileFormat(
    "NCCL Inspector log",
    recognise_inspector_log,
    judge_together=judge_inspector_logs_together,
    end_matters=True,
    holds_others=True,
)
INSPECTOR_METRICS = FileFormat(
    "NCCL Inspector metrics", recognise_inspector_metrics, judge_inspector_metrics, holds_others=True
)
