"""HOOK_BLIND in the jobs that run here: ranks whose hooks notice collectives made by C++ and cannot name them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.model import Finding
from laggard.probes.probe import finding
from laggard.rankfile.fact_names import UNNAMED_COLLECTIVES, UNNAMED_REASONS
from laggard.text.words import ranks_text
from laggard.wire.ranks import RankRow

_MAX_RANKS = 64


def hook_blind_findings(rows: Iterable[RankRow]) -> tuple[Finding, ...]:
    """Returns one finding for each job and reason. Any user may have written the files: reasons that are not known are
    left out."""
    blind: dict[tuple[int, str, str], list[RankRow]] = {}
    for row in rows:
        reason = row.facts.get(UNNAMED_COLLECTIVES)
        if row.state == "running" and isinstance(reason, str) and reason in UNNAMED_REASONS:
            blind.setdefault((row.owner, row.job_id, reason), []).append(row)
    return tuple(_finding(owner, job, reason, blind[owner, job, reason]) for owner, job, reason in sorted(blind))


def _finding(owner: int, job: str, reason: str, rows: list[RankRow]) -> Finding:
    wrong, fix = UNNAMED_REASONS[reason]
    ranks = sorted({row.rank for row in rows})
    return finding(
        "HOOK_BLIND",
        f"job {job}",
        f"collectives that C++ makes are not recorded on {ranks_text(ranks)}: {wrong}",
        evidence={
            "owner": owner,
            "ranks": ranks[:_MAX_RANKS],
            "reason": reason,
            "lost": sum(row.lost for row in rows),
        },
        fix=fix[0].upper() + fix[1:] + ".",
    )
