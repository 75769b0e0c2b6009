"""Findings from NCCL's own diagnostics: lines `NCCL DIAG` of 2.31 and newer. Pure.

A line has the tag [OK], or [INFO] for what may be wrong and for what could not be looked at. The forms are those of
2.32.3: src/ras/diagnostics_gpu.cc, diagnostics_env.cc, diagnostics_xid.cc, and src/diagnostics/p2p.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.model import Finding, Severity
from laggard.nccl.log.model import NcclProcess
from laggard.probes.probe import finding

_TAGGED = re.compile(r"\[INFO\] +(.*)")
_XID = re.compile(r"(SXid|Xid) (\d{1,6}) detected .* on host (\S{1,64})\. (.*)")
_EDGES = re.compile(r"p2p: (\d{1,9})/(\d{1,9}) .*\bverif(?:ied|ication)\b")
_RANKS = re.compile(r"rank\(s\) (\{[^}]{0,120}\}(?: \(N=\d+\))?)")

_MAX_FINDINGS = 32


class _Rule(NamedTuple):
    """The meaning of a line of one form."""

    form: re.Pattern[str]
    code: str
    severity: Severity
    fix: str


_RULES = (
    _Rule(
        re.compile(r"ECC: uncorrected volatile errors on"),
        "GPU_ECC_UNCORRECTED",
        Severity.CRITICAL,
        "Follow `nvidia-smi -q -d ECC,ROW_REMAPPER` on these ranks' nodes, and reset the GPU.",
    ),
    _Rule(
        re.compile(r"NVLink: inactive link\(s\) on"),
        "NVLINK_DOWN",
        Severity.CRITICAL,
        "`nvidia-smi nvlink -s` on these ranks' nodes shows which; reset the GPUs, and where it stays, call service.",
    ),
    _Rule(
        re.compile(r"p2p: .*\b(?:write|read) mismatch\b"),
        "NCCL_DIAGNOSTICS",
        Severity.CRITICAL,
        "Data were wrong between two GPUs: take the node out of service; look for ACS, the IOMMU and Xids.",
    ),
    _Rule(
        re.compile(r"\bmismatch\b|\bdiffer from\b|inconsistent link speeds|corrected volatile errors at or above"),
        "NCCL_DIAGNOSTICS",
        Severity.WARNING,
        "Make the ranks' machines, drivers and environments alike.",
    ),
)


def judge_own_diagnostics(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns one finding for each line that reports something wrong, each text once."""
    texts = dict.fromkeys(line for process in processes for line in process.diagnostics)
    tagged = dict.fromkeys(match[1] for text in texts if (match := _TAGGED.match(text)))
    return tuple(each for text in tagged for each in _judge(text))[:_MAX_FINDINGS]


def _judge(text: str) -> Iterator[Finding]:
    if xid := _XID.match(text):
        yield _xid_finding(xid, text)
    elif edges := _EDGES.match(text):
        yield from _edges_finding(edges, text)
    else:
        rule = next((rule for rule in _RULES if rule.form.search(text)), None)
        if rule:
            ranks = _RANKS.search(text)
            device = f"ranks {ranks[1]}" if ranks else "the job"
            yield _finding(rule.code, device, text, rule.severity, rule.fix)


def _xid_finding(xid: re.Match[str], text: str) -> Finding:
    """NCCL has counted it while the job ran. Where it advises a reset, the GPU is not fit for the next job."""
    kind, _, host, advice = xid.groups()
    serious = kind == "SXid" and "Fatal" in text or "resetting the affected GPU" in advice
    severity = Severity.CRITICAL if serious else Severity.WARNING
    fix = (
        "Give the node's kernel log to `laggard diagnose`, which knows each code; NCCL's own advice is in the evidence."
    )
    return _finding("GPU_XID", host.rstrip(".,"), text, severity, fix)


def _edges_finding(edges: re.Match[str], text: str) -> Iterator[Finding]:
    """The finding on how many of the copies that were tried between GPUs were right."""
    if int(edges[1]) < int(edges[2]):
        fix = "Lines with `write mismatch` or `read mismatch` name the GPUs: look for ACS, the IOMMU and Xids there."
        yield _finding("NCCL_DIAGNOSTICS", "the job", text, Severity.CRITICAL, fix)


def _finding(code: str, device: str, text: str, severity: Severity, fix: str) -> Finding:
    summary = f"NCCL's own diagnostics: {text[:200]}"
    return finding(code, device, summary, evidence={"log": text}, fix=fix, severity=severity)
