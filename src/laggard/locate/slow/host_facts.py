"""Explains slow ranks by their host: their threads wait for a CPU, and those of their peers do not. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from msgspec import structs

from laggard.kit.words import printable_line, seconds_text
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import middle
from laggard.model import HIDDEN, CpuNeighbour, Culprit
from laggard.wire.ranks import CpuWait

_MAX_NAMED: Final = 3
_MAX_COMMAND_CHARACTERS: Final = 32

CPU_WAIT_RATIO = 0.1
"""The least share of the CPU time which a rank's threads asked for and did not get, for its host to be what is slow.
Our choice."""
CPU_WAIT_PEER_RATIO = 2.0
"""The least ratio of the CPU time that the threads missed, for each second that they ran, to what their peers' threads
missed: what all have makes none of them slower than the others."""
CPU_WAIT_COST_SHARE = 0.5
"""The least share of the culprit's cost that the CPU time must make up which its threads missed beyond their peers'."""


NOT_KNOWN = "whether its threads waited for a CPU is not known, or not yet: the kind may become slow_host"


class _Missed(NamedTuple):
    """The CPU time that threads had and that they missed, in seconds for each second that they were watched."""

    running: float
    queued: float
    throttled: float
    stolen: float

    @property
    def total(self) -> float:
        """The kernel counts what a quota holds back as time in the run queue, too."""
        return max(self.queued, self.throttled) + self.stolen


def with_host_facts(timings: JobTimings, culprits: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """`culprits`; those whose threads wait for a CPU are of kind slow_host, with how long as their first evidence."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    usual = _usual(timings, {rank for culprit in culprits for rank in culprit.ranks})
    return tuple(_explained(timings, columns, culprit, usual) for culprit in culprits)


def as_slow_host(timings: JobTimings, rank: int, culprit: Culprit) -> Culprit | None:
    """The culprit as it is where `rank` is what is slow of it, by its threads' want of a CPU; None where they do not
    wait for one longer than those of the ranks that have no part in it."""
    columns = {int(each): column for column, each in enumerate(timings.ranks)}
    wait = timings.states[columns[rank]].cpu_wait
    usual = _usual(timings, {*culprit.ranks, *culprit.victims})
    if wait is None or not _is_held_up(_missed(wait), usual, culprit.recoverable_ratio or 0.0):
        return None
    neighbours = _named(wait)
    return structs.replace(
        culprit,
        kind="slow_host",
        ranks=(rank,),
        node=timings.nodes[columns[rank]],
        phase=None,
        group=None,
        link=None,
        nodes=(),
        victims=tuple(sorted({*culprit.ranks, *culprit.victims} - {rank})),
        evidence=(_evidence(wait, usual, neighbours), *culprit.evidence),
        neighbours=neighbours,
    )


def _usual(timings: JobTimings, slow: Set[int]) -> _Missed | None:
    """The CPU time that the threads of all ranks but the slow ones missed, as a rule; None where none is known."""
    states = zip(timings.ranks.tolist(), timings.states, strict=True)
    peers = [_missed(state.cpu_wait) for rank, state in states if rank not in slow and state.cpu_wait]
    return _Missed(*map(middle, zip(*peers, strict=True))) if peers else None


def _explained(timings: JobTimings, columns: dict[int, int], culprit: Culprit, usual: _Missed | None) -> Culprit:
    waits = [wait for rank in culprit.ranks if (wait := timings.states[columns[rank]].cpu_wait)]
    worst = max(waits, key=lambda wait: _share(_missed(wait)), default=None)
    if culprit.kind not in ("slow_compute", "slow_host", "slow_input"):
        return culprit
    if worst is None:
        runs = any(timings.states[columns[rank]].state == "running" for rank in culprit.ranks)
        return structs.replace(culprit, evidence=(*culprit.evidence, NOT_KNOWN)) if timings.live and runs else culprit
    if not _is_held_up(_missed(worst), usual, culprit.recoverable_ratio or 0.0):
        return culprit
    neighbours = _named(worst)
    evidence = (_evidence(worst, usual, neighbours), *culprit.evidence)
    return structs.replace(culprit, kind="slow_host", evidence=evidence, neighbours=neighbours)


def _is_held_up(missed: _Missed, usual: _Missed | None, cost: float) -> bool:
    """Whether the want of a CPU is what makes threads slower than their peers' by `cost`, a share of the time."""
    if _share(missed) < CPU_WAIT_RATIO:
        return False
    if usual is None:
        return True
    more = missed.total - usual.total
    at_the_same_work = missed.total * usual.running >= CPU_WAIT_PEER_RATIO * usual.total * missed.running
    return at_the_same_work and more >= CPU_WAIT_COST_SHARE * cost


def _missed(wait: CpuWait) -> _Missed:
    times = (wait.running_seconds, wait.queued_seconds, wait.throttled_seconds, wait.stolen_seconds)
    return _Missed(*(each / wait.seconds if wait.seconds > 0 else 0.0 for each in times))


def _share(missed: _Missed) -> float:
    """The share of the CPU time that the threads asked for and did not get; 0 to 1."""
    wanted = missed.running + missed.total
    return missed.total / wanted if wanted > 0.05 else 0.0


def _named(wait: CpuWait) -> tuple[CpuNeighbour, ...]:
    """The processes that the evidence names: those of this machine, where they held the threads up."""
    others = wait.throttled_seconds > CPU_WAIT_RATIO * wait.seconds or wait.stolen_seconds > wait.queued_seconds
    return () if others else wait.neighbours[:_MAX_NAMED]


def neighbours_text(neighbours: Sequence[CpuNeighbour]) -> str:
    """The end of the evidence that names them."""
    who = " and ".join(map(_neighbour, neighbours)) or "others run"
    return f": {who} on its cores"


def _evidence(wait: CpuWait, usual: _Missed | None, neighbours: Sequence[CpuNeighbour]) -> str:
    """The evidence of what held the threads up, for how long, and who."""
    of = f"of {seconds_text(wait.seconds)}"
    if wait.throttled_seconds > CPU_WAIT_RATIO * wait.seconds:
        return f"its cgroup's CPU quota held it back for {seconds_text(wait.throttled_seconds)} {of}"
    if wait.stolen_seconds > wait.queued_seconds:
        taken = seconds_text(wait.stolen_seconds)
        return f"the hypervisor ran other machines on its cores for about {taken} {of} that its threads wanted (steal)"
    peers = f", its peers' for {seconds_text(usual.queued * wait.seconds)}" if usual else ""
    waited = f"{seconds_text(wait.queued_seconds)} in {seconds_text(wait.seconds)}"
    return f"its threads together waited for a CPU for {waited}{peers}{neighbours_text(neighbours)}"


def _neighbour(each: CpuNeighbour) -> str:
    """`process 4711 (stress) of user 0 ran 3.1 s`"""
    if each.owner == HIDDEN:
        return f"another user's process ran {seconds_text(each.seconds)}"
    command = f" ({printable_line(each.command, _MAX_COMMAND_CHARACTERS)})" if each.command else ""
    return f"process {each.pid}{command} of user {each.owner} ran {seconds_text(each.seconds)}"
