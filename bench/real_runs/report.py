"""The table of real runs: what was said of each, by job and fault. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from real_runs.catalogue import FAULTS, JOBS, engine_of
from real_runs.judge import WORTHS

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
    parts += [failed(answers)]
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


def failed(answers: Answers) -> list[str]:
    return [f"- {job}, {fault}: no run: {one['failed']}" for (job, fault), one in answers.items() if "failed" in one]


def said(named: Sequence[Mapping[str, Any]]) -> str:
    """A tool's answer in a line."""
    if not named:
        return "nobody"
    return ", ".join(f"{one['kind']} of rank {'-'.join(map(str, one['ranks']))}" for one in named)
