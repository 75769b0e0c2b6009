"""The table of real runs: what was said of each, by job and fault. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quality.report import OUT_OF_SCOPE, run_as
from quality.scope import scope_of

from real_runs.catalogue import FAULT_OF, FAULTS, JOBS, Run, engine_of, layout_of, truth_of
from real_runs.judge import PARTLY, RIGHT, WORTHS, WRONG

DISTURBED = 0.1
"""The share of the machine that others may use in a run that counts. A run of which that is not known does not."""
Answers = Mapping[tuple[str, str], Mapping[str, Any]]


def table(answers: Answers) -> str:
    """Counts by fault, then each job's answer, of the runs that had the machine for themselves; then of the others.
    Runs that made no recording stand apart."""
    judged = {key: one for key, one in answers.items() if "worth" in one}
    quiet = {key: one for key, one in judged.items() if one.get("others", 1.0) <= DISTURBED}
    disturbed = {key: one for key, one in judged.items() if key not in quiet}
    parts = [[*counts(quiet), "", *by_job(quiet)]] if quiet else []
    if disturbed:
        parts.append([f"While others used more than {DISTURBED:.0%} of the machine:".replace("%", " %", 1)])
        parts.append([*counts(disturbed), "", *by_job(disturbed)])
    parts += [of_tools(judged), failed(answers)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def counts(judged: Answers) -> list[str]:
    lines = [f"| fault | {' | '.join(WORTHS)} |", "|---|" + "---|" * len(WORTHS)]
    for fault in FAULTS:
        each = Counter(one["worth"] for (_, name), one in judged.items() if name == fault.name)
        if each:
            lines.append(f"| {fault.what} | {' | '.join(str(each[worth]) for worth in WORTHS)} |")
    every = Counter(one["worth"] for one in judged.values())
    return [*lines, f"| all {len(judged)} | {' | '.join(str(every[worth]) for worth in WORTHS)} |"]


def by_job(judged: Answers) -> list[str]:
    names = [fault.name for fault in FAULTS if any(key[1] == fault.name for key in judged)]
    lines = [f"| job | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for job in JOBS:
        cells = [str(judged[job, name]["worth"]) if (job, name) in judged else "" for name in names]
        if any(cells):
            lines.append(f"| {engine_of(job).title}, {engine_of(job).ranks} ranks | {' | '.join(cells)} |")
    return lines


FAILED, NOT_ASKED = "failed", "not asked"
"""What stands in place of an answer's worth where a tool failed, or reads nothing that is there."""
TOOLS_HEAD = (
    "tool",
    "as",
    "found in its scope",
    "found of all",
    "named others",
    "accused where nobody is at fault",
    "ended with an error",
)


def of_tools(answers: Answers) -> list[str]:
    """What other tools said of the same recordings, a row for each. A victim is found where it alone is named, by
    whatever kind."""
    asked = {key: one["tools"] for key, one in answers.items() if one.get("tools")}
    names = dict.fromkeys(name for tools in asked.values() for name in tools)
    rows = [of_tool(name, {Run(*key): tools[name] for key, tools in asked.items() if name in tools}) for name in names]
    lines = ["| " + " | ".join(row) + " |" for row in (TOOLS_HEAD, *rows)]
    return [lines[0], "|" + "---|" * len(TOOLS_HEAD), *lines[1:]] if rows else []


def of_tool(name: str, worths: Mapping[Run, str]) -> tuple[str, ...]:
    scope = scope_of(name)
    faulty = {run: worth for run, worth in worths.items() if truth_of(run)["victims"] and truth_of(run)["required"]}
    rows = {run: FAULT_OF[run.fault].row for run in faulty}
    claimed = [worth for run, worth in faulty.items() if scope.holds(rows[run], "host", layout_of(run.job))]
    calm = [worth for run, worth in worths.items() if not truth_of(run)["victims"]]
    return (
        name,
        run_as(name),
        found_of(claimed),
        found_of(list(faulty.values())) if claimed else OUT_OF_SCOPE,
        f"{sum(worth == WRONG for worth in faulty.values())} of {len(faulty)}",
        f"{sum(worth == WRONG for worth in calm)} of {sum(worth in WORTHS for worth in calm)}",
        f"{sum(worth == FAILED for worth in worths.values())} of {len(worths)}",
    )


def found_of(worths: Sequence[str]) -> str:
    return f"{sum(worth in (RIGHT, PARTLY) for worth in worths)} of {len(worths)}" if worths else OUT_OF_SCOPE


def failed(answers: Answers) -> list[str]:
    return [f"- {job}, {fault}: no run: {one['failed']}" for (job, fault), one in answers.items() if "failed" in one]


def said(named: Sequence[Mapping[str, Any]]) -> str:
    """A tool's answer in a line."""
    if not named:
        return "nobody"
    return ", ".join(f"{one['kind']} of rank {'-'.join(map(str, one['ranks']))}" for one in named)
