"""The format `sacct`: how Slurm's jobs ended, as a table or parsable (`-P`).

Source: Slurm (src/sacct, src/common/job_state.c; "JOB STATE CODES" of sacct's manual).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(r"^[^\S\n]*JobID(?:Raw)?\b[^\n]*\bState\b[^\n]*(?:\n[ -]*--[ -]*)?$", re.MULTILINE)
_MEMORY = "Ask for more memory, or use less: fewer DataLoader workers, no copy of the data set in each."
_LOG = "The job's own output says why: give it to `laggard diagnose` with this table."
STATES: Final[tuple[tuple[str, str, str, Severity, str], ...]] = (
    ("OUT_OF_ME", "JOB_HOST_OUT_OF_MEMORY", "was killed for its memory limit", Severity.CRITICAL, _MEMORY),
    ("NODE_FAIL", "JOB_KILLED", "ended because a node failed", Severity.CRITICAL, "Look at the node: sinfo -R."),
    ("BOOT_FAIL", "JOB_KILLED", "ended because a node did not boot", Severity.CRITICAL, "Look at the node: sinfo -R."),
    ("PREEMPTED", "JOB_PREEMPTED", "was preempted", Severity.CRITICAL, "Start it again from its checkpoint."),
    ("TIMEOUT", "JOB_PREEMPTED", "reached its time limit", Severity.CRITICAL, "Ask for more time, or save in time."),
    ("DEADLINE", "JOB_PREEMPTED", "reached its deadline", Severity.CRITICAL, "Submit it with a later deadline."),
    ("CANCELLED", "JOB_KILLED", "was cancelled", Severity.WARNING, "Ask who cancelled it: the number is a user's."),
    ("FAILED", "JOB_EXCEPTION", "failed", Severity.WARNING, _LOG),
)
MAX_JOBS: Final = 8
"""The most jobs that are told of, the last ones."""


def read(section: Section) -> Iterator[Finding | Fact]:
    jobs: dict[str, list[dict[str, str]]] = {}
    for row in _rows(section.text.split("\n")[:65536]):
        jobs.setdefault(re.split(r"[.+]", row.get("JobID") or row.get("JobIDRaw") or "")[0], []).append(row)
    yield Fact("jobs", len(jobs))
    for job in list(jobs)[-MAX_JOBS:]:
        if found := _judge(job, jobs[job]):
            yield found


def _rows(lines: list[str]) -> Iterator[dict[str, str]]:
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if _HEAD.match(line):
            names = line.rstrip("|\n").split("|") if "|" in line else line.split()
            below = lines[number + 1] if number + 1 < len(lines) else ""
            spans = [match.span() for match in re.finditer(r"-+", below)] if "|" not in line else []
        elif names and not line.strip():
            names = []
        elif names and not set(line) <= set("- "):
            cells = line.split("|") if not spans else [line[begin:end].strip() for begin, end in spans]
            yield dict(zip(names, map(str.strip, cells), strict=False))


def _judge(job: str, rows: list[dict[str, str]]) -> Finding | None:
    """Judges a job by its own row, and by its steps where its own row says only that it failed."""
    if rows[0].get("State", "").startswith(("COMPLETED", "RUNNING", "PENDING")):
        return None
    for prefix, code, words, severity, fix in STATES:
        for row in rows:
            if row.get("State", "").startswith(prefix):
                return _finding(code, job, f"{words} ({_ending(row)})", severity, row, fix)
    return None


def _ending(row: Mapping[str, str]) -> str:
    exits = row.get("ExitCode", "")
    return f"{row['State']}, exit code {exits}" if exits else row["State"]


def _finding(code: str, job: str, summary: str, severity: Severity, row: Mapping[str, str], fix: str) -> Finding:
    kept = {
        name.lower(): row[name] for name in ("NodeList", "MaxRSS", "ReqMem", "Elapsed", "Timelimit") if row.get(name)
    }
    commands = (f"sacct -j {job} --format=JobID,State,ExitCode,MaxRSS,ReqMem,NodeList",)
    return finding(code, f"job {job}", summary, severity=severity, evidence=kept, fix=fix, commands=commands)


SLURM_JOBS: Final = paste_format("sacct", _HEAD, read)
