"""The formats `sinfo, scontrol show node` and `sacct`: nodes that were taken out of service, with a table of reasons,
and how jobs ended.

Sources: Slurm (src/sinfo/opts.c, src/common/node_info.c of 20.11 to 25.05; src/sacct).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.diagnose.pastes.section import Section, parts_of, paste_format
from laggard.diagnose.rules import Row, patterns, table
from laggard.model import Finding, Fix
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "slurm_")

_TABLE: Final = table("slurm")
DRAIN_REASONS: Final = tuple(row for row in _TABLE.rows if row.kind.startswith("drain_"))
"""The first that is found in a reason counts; the last but one is of what is planned, the last of all others."""
_PLANS: Final = DRAIN_REASONS[-2]
JOB_STATES: Final = tuple(row for row in _TABLE.rows if row.kind.startswith("state_"))


def drain_reason(text: str) -> Row:
    """The row of a reason. What somebody plans for GPUs, links or mounts is no fault of theirs."""
    if _P["planned"].search(text[:400]) and not _P["broken"].search(text[:400]):
        return _PLANS
    return next(row for row in DRAIN_REASONS if row.regex.search(text[:400]))


MAX_NODES: Final = 4096


def read_nodes(section: Section) -> Iterator[Finding | Fact]:
    blocks = [(head[1], block) for head, block in parts_of(_P["node"], section.text, MAX_NODES)]
    told: set[str] = set()
    for name, block in blocks:
        for found in _judge_node(name, block):
            told.add(name)
            yield found
    lines = section.text.split("\n")[: MAX_NODES * 4]
    rows = [match for match in map(_P["row"].match, _after_head(lines, _P["reasons"])) if match]
    yield Fact("nodes", len(blocks) + len(rows))
    if not rows and any(_P["reasons"].match(line.rstrip()) for line in lines):
        yield Fact("no_node_has_a_reason", True)  # a heading alone is all that `sinfo -R` prints then
    for match in rows[:MAX_NODES]:
        if match[5] not in told:
            told.add(match[5])
            yield from _node_finding(match[5], match[4] or "drained or down", match[1], match[2], match[3])
    yield from _states(lines, bool(rows or blocks))


def _judge_node(name: str, block: str) -> Iterator[Finding]:
    state, reason = _P["state"].search(block), _P["reason"].search(block)
    if state and _P["out"].search(state[1]) and not _P["on_purpose"].search(state[1]):
        text = reason[1] if reason else "no reason is given"
        yield from _node_finding(name, state[1], text, (reason and reason[2]) or "", (reason and reason[3]) or "")


def _after_head(lines: list[str], head: re.Pattern[str]) -> Iterator[str]:
    """Yields the lines of a table, up to an empty one."""
    inside = False
    for line in lines:
        if head.match(line.rstrip()):
            inside = True
        elif not line.strip():
            inside = False
        elif inside:
            yield line


def _states(lines: list[str], told: bool) -> Iterator[Finding | Fact]:
    """Judges sinfo's table of states: nodes that do not answer. `sinfo -R` tells why others are drained."""
    head = next((line.split() for line in lines if "STATE" in line and "NODELIST" in line and "REASON" not in line), [])
    if not head:
        return
    out = [line.split() for line in lines if len(line.split()) == len(head)]
    place, names = head.index("STATE"), head.index("NODELIST")
    states = {row[names]: row[place] for row in out if row != head}
    bad = {names: state for names, state in states.items() if _P["dead"].fullmatch(state)}
    yield Fact("nodes_out", {name: state for name, state in states.items() if _P["out"].search(state)})
    for name, state in bad.items() if not told else ():
        yield from _node_finding(name, state, "Not responding" if state.endswith("*") else "no reason is given", "", "")


def _node_finding(name: str, state: str, reason: str, user: str, when: str) -> Iterator[Finding]:
    row = drain_reason(reason)
    if "planned" in row.more:
        return
    evidence = {"reason": reason.strip(), "set_by": user or None, "since": when or None, "state": state}
    fix = Fix(row.fix.text, (f"scontrol show node {name}", "sinfo -R -o '%60E %12u %19H %N'"))
    told = f"is {state}, the reason: {reason.strip()}"
    yield row._replace(device=f"node {name}", says=told, fix=fix).found(evidence)


SLURM_NODES: Final = paste_format("sinfo, scontrol show node", _P["nodes_head"], read_nodes)


MAX_JOBS: Final = 8
"""The most jobs that are told of, the last ones."""


def read_jobs(section: Section) -> Iterator[Finding | Fact]:
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
        if _P["jobs_head"].match(line):
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
    for state in JOB_STATES:
        for row in rows:
            if row.get("State", "").startswith(state.pattern):
                return _job_finding(state, job, row)
    return None


def _ending(row: Mapping[str, str]) -> str:
    exits = row.get("ExitCode", "")
    return f"{row['State']}, exit code {exits}" if exits else row["State"]


def _job_finding(state: Row, job: str, row: Mapping[str, str]) -> Finding:
    kept = {
        name.lower(): row[name] for name in ("NodeList", "MaxRSS", "ReqMem", "Elapsed", "Timelimit") if row.get(name)
    }
    fix = Fix(state.fix.text, (f"sacct -j {job} --format=JobID,State,ExitCode,MaxRSS,ReqMem,NodeList",))
    return state._replace(device=f"job {job}", says=f"{state.says} ({_ending(row)})", fix=fix).found(kept)


SLURM_JOBS: Final = paste_format("sacct", _P["jobs_head"], read_jobs)
