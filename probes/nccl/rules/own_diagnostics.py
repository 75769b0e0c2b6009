"""Findings from what NCCL says of itself: lines `NCCL DIAG` of 2.31 and newer, lines ATTN of 2.32, and ports whose
speed changed (2.30 and newer). Pure; each form is a row of probes/rules/nccl.ini.

A line of the diagnostics has the tag [OK], or [INFO] for what may be wrong and for what could not be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Finding
from laggard.nccl.log.model import NcclProcess
from laggard.probes.nccl.model.job import evidence_of, hosts_of
from laggard.probes.probe import rules, say

_TAG: Final = re.compile(r"\[\w+\] +")
_RANKS: Final = re.compile(r"rank\(s\) (\{[^}]{0,120}\}(?: \(N=\d+\))?)")
_HOST: Final = re.compile(r" on host ([\w.-]*\w)")
_SPEED: Final = re.compile(r"NET/[^:]{1,32}: (\S{1,64}):\d+ speed change detected: (\d{1,12}) -> (\d{1,12}) Mbps")
_MAX_FINDINGS: Final = 32


def judge_own_diagnostics(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns one finding for each text that reports something wrong, and for each port that is slower than it was."""
    writers: dict[tuple[str, str], list[NcclProcess]] = {}
    for process in processes:
        for text in (*process.diagnostics, *process.warnings):
            writers.setdefault((process.host if not text.startswith("[") else "", text), []).append(process)
    found = [each for (host, text), own in writers.items() for each in _judge(host, text, own)]
    return tuple(found[:_MAX_FINDINGS]) + tuple(each for process in processes for each in _slower(process))


def _judge(host: str, text: str, own: Sequence[NcclProcess]) -> Iterator[Finding]:
    row = next((row for row in rules("nccl") if row.regex.match(text)), None) if text[:4] != "[OK]" else None
    match = row and row.regex.match(text)
    if row and match and row.code:
        ranks, on = _RANKS.search(text), _HOST.search(text)
        named = {
            "ranks": f"ranks {ranks[1]}" if ranks else "the job",
            "host": on[1] if on else host or "the job",
            "text": _TAG.sub("", text, count=1)[:200],
            **match.groupdict(),
        }
        yield row.found({"log": _TAG.sub("", text, count=1), "set_on": hosts_of(own), **evidence_of(own)}, **named)


def _slower(process: NcclProcess) -> Iterator[Finding]:
    """The last change of a port counts, beside the fastest that any of them names."""
    changes = [match for text in process.diagnostics if (match := _SPEED.match(text))]
    for name in dict.fromkeys(match[1] for match in changes):
        own = [match for match in changes if match[1] == name]
        was, now = max(int(match[side]) for match in own for side in (2, 3)), int(own[-1][3])
        if now < was:
            device = f"{process.host or 'the job'} {name}"
            evidence = {"log": own[-1][0], **evidence_of([process])}
            yield say("nccl", "rate", device, evidence, name=name, was=was, now=now)
