"""Whether what a collector says of the fleet's jobs is right. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from simulated_fleet.plan import KINDS, Job, Plan

RIGHT: Final = "right"
"""The culprit is named and nobody else is, or nobody is named in a job without one."""

UNKNOWN: Final = "unknown"
MISSED: Final = "missed"
FALSE: Final = "false"
"""Somebody is named who has nothing to do with it, or a job without a fault fails."""

MAX_TOLD: Final = 8
"""The most wrong verdicts that are told of one by one."""


class Judged(NamedTuple):
    """A job and whether its verdict is right. `whole`: all of its agents tell the truth. `liars`: how many machines are
    named besides whose own agents claim to have the job's ranks, and to be slow: that is what they are asked for."""

    job: Job
    outcome: str
    whole: bool
    said: str
    liars: int = 0


def judged(plan: Plan, locations: Mapping[str, Mapping[str, Any]], now: float) -> list[Judged]:
    """`locations`: the verdicts (`laggard.location/1`) by the job's key; `now`: of the fleet's clock."""
    return [_judged(plan, job, locations.get(job.key), now) for job in plan.jobs]


def _judged(plan: Plan, job: Job, location: Mapping[str, Any] | None, now: float) -> Judged:
    whole = not plan.unseen(job)
    if location is None:
        return Judged(job, UNKNOWN, whole, "not known")
    claiming = {f"n{node}" for node, bad in plan.bad.items() if bad == "claims"}
    culprits = [each for each in location["culprits"] if each.get("node") not in claiming]
    liars, verdict = len(location["culprits"]) - len(culprits), location["verdict"]
    named = [(culprit["kind"], tuple(culprit["ranks"])) for culprit in culprits]
    said = f"{job.name} ({job.fault or 'healthy'} {job.victim}): {verdict} {named[:3]}"
    began = job.fault and (job.fault in ("slow_gpu", "slow_link") or now > job.stop)
    right = [kind == KINDS[job.fault] and set(ranks) <= job.victims for kind, ranks in named] if began else []
    if named and not (right and all(right)):
        outcome = FALSE
    elif verdict == "unknown":
        outcome = UNKNOWN
    elif began:
        outcome = RIGHT if named else MISSED
    else:
        outcome = RIGHT if verdict == "ok" or liars else FALSE
    return Judged(job, outcome, whole, said, liars)


def counts(found: Iterable[Judged]) -> dict[str, int]:
    """How often each outcome was, of jobs with a fault and without, that are seen whole and in part."""
    kinds = Counter(
        f"{each.job.fault or 'healthy'}, seen {'whole' if each.whole else 'in part'}: {each.outcome}" for each in found
    )
    return dict(sorted(kinds.items()))


def total(found: Iterable[Judged], outcome: str) -> int:
    return sum(each.outcome == outcome for each in found)


def wrong(found: Iterable[Judged]) -> list[str]:
    return [each.said for each in found if each.outcome in (FALSE, MISSED)][:MAX_TOLD]
