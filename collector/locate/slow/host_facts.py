"""Explains slow ranks by their host: their threads wait for a CPU, and those of their peers do not. Pure."""

from __future__ import annotations

from statistics import median

from msgspec import structs

from laggard.collector.locate.job_timings import JobTimings
from laggard.model import Culprit
from laggard.text.words import seconds_text
from laggard.wire.ranks import CpuWait

HELD_UP = 0.1
"""Where a rank's threads got so much less CPU time than they asked for, its host is what is slow. Our own choice."""
TIMES_PEERS = 2.0
"""And where that share is so many times its peers': what all have makes none of them slower than the others."""


NOT_KNOWN = "whether its threads waited for a CPU is not known, or not yet: the kind may become slow_host"


def with_host_facts(timings: JobTimings, culprits: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """`culprits`; those whose threads wait for a CPU are of kind slow_host, with how long as their first evidence."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    slow = {rank for culprit in culprits for rank in culprit.ranks}
    peers = [wait for rank, column in columns.items() if rank not in slow and (wait := timings.states[column].cpu_wait)]
    usual = CpuWait(
        *(median(values) for values in zip(*(structs.astuple(wait) for wait in peers), strict=True))
    ) if peers else None  # fmt: skip
    return tuple(_explained(timings, columns, culprit, usual) for culprit in culprits)


def _explained(timings: JobTimings, columns: dict[int, int], culprit: Culprit, usual: CpuWait | None) -> Culprit:
    waits = [wait for rank in culprit.ranks if (wait := timings.states[columns[rank]].cpu_wait)]
    worst = max(waits, key=held_up, default=None)
    if culprit.kind not in ("slow_compute", "slow_host", "slow_input"):
        return culprit
    if worst is None:
        runs = any(timings.states[columns[rank]].state == "running" for rank in culprit.ranks)
        return structs.replace(culprit, evidence=(*culprit.evidence, NOT_KNOWN)) if timings.live and runs else culprit
    if held_up(worst) < max(HELD_UP, TIMES_PEERS * (held_up(usual) if usual else 0.0)):
        return culprit
    return structs.replace(culprit, kind="slow_host", evidence=(_evidence(worst, usual), *culprit.evidence))


def held_up(wait: CpuWait) -> float:
    """The share of the CPU time that the threads asked for and did not get; 0 to 1."""
    missed = max(wait.queued_seconds, wait.throttled_seconds)
    wanted = wait.running_seconds + missed
    return missed / wanted if wanted > 0.05 * wait.seconds else 0.0


def _evidence(wait: CpuWait, usual: CpuWait | None) -> str:
    """What held the threads up, and for how long."""
    of = f"of {seconds_text(wait.seconds)}"
    if wait.throttled_seconds > HELD_UP * wait.seconds:
        return f"its cgroup's CPU quota held it back for {seconds_text(wait.throttled_seconds)} {of}"
    peers = f", its peers' for {seconds_text(usual.queued_seconds)}" if usual else ""
    return f"its threads waited for a CPU for {seconds_text(wait.queued_seconds)} {of}{peers}: others run on its cores"
