"""Findings and the machines that they come from, where a file holds the outputs of several."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileJudgement
from laggard.model import Finding


def named(judgement: FileJudgement, content: FileContent) -> FileJudgement:
    """Returns the judgement with the machine, where the file names it, in the evidence of each finding."""
    return judgement._replace(findings=tuple(on_host(found, content) for found in judgement.findings))


def on_host(found: Finding, content: FileContent) -> Finding:
    if not content.host or "host" in found.evidence:
        return found
    others = {"other_hosts_in_the_file": list(content.other_hosts)} if content.other_hosts else {}
    return msgspec.structs.replace(found, evidence={"host": content.host, **found.evidence, **others})


def without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    """Leaves out findings that say the same as one before: a report may hold one log twice."""
    kept: dict[str, Finding] = {}
    for found in findings:
        key = json.dumps([found.code, found.device, found.summary, found.evidence], sort_keys=True, default=str)
        kept.setdefault(key, found)
    return list(kept.values())
