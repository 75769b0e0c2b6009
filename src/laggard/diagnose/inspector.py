"""The formats of NCCL Inspector: its log, a JSON object for each collective, and its metrics for node_exporter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.model import Finding
from laggard.nccl.inspector import (
    INSPECTOR_METRIC,
    NO_NUMBERS,
    InspectorLog,
    LastArrival,
    gaps_of,
    is_inspector_line,
    last_arrivals,
)
from laggard.probes.probe import finding
from laggard.text.words import ascii_line, seconds_text

_FIRST_LINES: Final = 8
_GPU = re.compile(r'\bnode="([^"]{1,64})",gpu="([^"]{1,64})"')


def recognise(content: FileContent) -> bool:
    return any(is_inspector_line(line) for line in content.text[: 1 << 18].split("\n")[:_FIRST_LINES])


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    return judge_together([content], hardware)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    """Judges the files of all processes of a job at once: who came last shows in all of them only."""
    log = InspectorLog()
    for content in contents:
        for piece in content.pieces():
            log.feed(piece)
        log.end()
    arrivals = last_arrivals(log)
    facts = {
        "records": log.records,
        "torn_lines": log.torn,
        "communicators": arrivals.communicators,
        "collectives_compared": arrivals.compared,
        "ranks": arrivals.ranks,
        "ranks_seen": arrivals.ranks_seen,
    }
    return FileJudgement(tuple(map(_finding, arrivals.late)), facts, "; ".join(gaps_of(log, arrivals)))


def _finding(late: LastArrival) -> Finding:
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


def recognise_metrics(content: FileContent) -> bool:
    return INSPECTOR_METRIC.search(content.text[: 1 << 18]) is not None


def judge_metrics(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    gpus = {found for piece in content.pieces() for found in _GPU.findall(piece)}
    samples = sum(len(INSPECTOR_METRIC.findall(piece)) for piece in content.pieces())
    return FileJudgement((), {"samples": samples, "gpus": len(gpus)}, NO_NUMBERS)


INSPECTOR_LOG = FileFormat(
    "NCCL Inspector log", recognise, judge, judge_together=judge_together, end_matters=True, holds_others=True
)
INSPECTOR_METRICS = FileFormat("NCCL Inspector metrics", recognise_metrics, judge_metrics, holds_others=True)
