"""Explains slow ranks by the threads of their own process that run beside the training and hold Python's lock. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import structs

from laggard.kit.constants import PHASES
from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.job_timings import JobTimings, OwnThreads
from laggard.locate.medians import median, median_over_steps, middle, over_phases
from laggard.locate.slow.ranks import MIN_KNOWN, Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import Past, Steps, confined, node_numbers, steps_needed
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

BUSY_SHARE: Final = 0.1
"""The least share of the time that threads beside the training must run more than those of the peers to be the
cause."""

WAKE_DELAY_SECONDS: Final = 0.002
"""The delay, beyond the peers', with which a sleeping thread wakes where busy threads are the cause: Python's lock is
handed over after 5 ms at the earliest where somebody computes (sys.getswitchinterval)."""

_KINDS: Final = ("slow_compute", "slow_host", "slow_input")


def with_busy_threads(timings: JobTimings, culprits: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """`culprits`; those that the threads of their own process hold up are of kind busy_threads, with the threads' names
    as their first evidence. No machine is at fault then."""
    told = dict(zip(timings.ranks.tolist(), timings.own_threads, strict=True)) if timings.own_threads else {}
    slow = {rank for culprit in culprits for rank in culprit.ranks}
    peers = [each for rank, each in told.items() if each is not None and rank not in slow]
    usual = OwnThreads(
        middle([it.busy for it in peers] or [0.0]), middle([it.late_seconds for it in peers] or [0.0]), ()
    )
    return tuple(_explained(culprit, told, usual) for culprit in culprits)


def _explained(culprit: Culprit, told: Mapping[int, OwnThreads | None], usual: OwnThreads) -> Culprit:
    found = [each for rank in culprit.ranks if (each := told.get(rank)) is not None]
    held = [each for each in found if _holds_up(each, usual)]
    if culprit.kind not in _KINDS or not held or len(held) < len(culprit.ranks):
        return culprit
    worst = max(held, key=lambda each: each.busy)
    evidence = (_evidence(worst, usual), *culprit.evidence)
    return structs.replace(culprit, kind="busy_threads", node=None, gpu=None, neighbours=None, evidence=evidence)


def _holds_up(found: OwnThreads, usual: OwnThreads) -> bool:
    return found.busy - usual.busy >= BUSY_SHARE and found.late_seconds - usual.late_seconds >= WAKE_DELAY_SECONDS


def _evidence(found: OwnThreads, usual: OwnThreads) -> str:
    names = f" ({', '.join(found.names)})" if found.names else ""
    return (
        f"threads of its own process{names} ran for {found.busy:.2f} s of each second beside the training, its peers' "
        f"for {usual.busy:.2f} s, and Python's lock (the GIL) came {seconds_text(found.late_seconds)} late, its peers' "
        f"{seconds_text(usual.late_seconds)}"
    )


# Finds slow ranks whose work nobody else does, as that of experts, beside the others of their stage. Pure.
#
# An expert to which more tokens are sent makes a rank's passes longer, and a slower machine does, too. But the update
# of its parameters is as large as the others', whatever the tokens: who takes longer for that as well is slower.

MIN_RANKS: Final = 4
"""The fewest ranks of a stage that tell what is usual there."""

UPDATE_PART: Final = 0.5
"""The least part that the excess of the one has of the excess of the other: a slower machine slows both alike."""

_PASSES: Final = [PHASES.index("forward"), PHASES.index("backward")]
_UPDATE: Final = PHASES.index("optimizer")
_HOSTS: Final = [PHASES.index("input"), PHASES.index("between_steps")]


MIN_UPDATE_SHARE: Final = 0.01
"""The share of the step below which an update tells nothing."""


def slow_at_their_own_experts(timings: JobTimings, steps: Steps) -> tuple[Steps, list[Slow]]:
    """The ranks without peers that are slow in passes and update beside the others of their stage, and the steps in
    which these are compared; empty where the update tells nothing."""
    if timings.stages is None or not steps.phased:
        return steps, []
    _, number, size = np.unique(timings.stages, return_inverse=True, return_counts=True)
    judged = (steps.peers.sizes == 1) & (size[number] >= MIN_RANKS)
    if not judged.any():
        return steps, []
    beside = steps.regrouped(number, timings.nodes)
    found = [each for each in slow_ranks(beside, timings.nodes).slow if judged[list(each.columns)].all()]
    found = [each for each in found if _is_slower(beside, each) and is_waited_for(beside, each)]
    return (beside, found) if found else (steps, [])


def slow_at_what_hosts_do(timings: JobTimings, steps: Steps) -> tuple[Steps, list[Slow]]:
    """The machines that have all ranks of several kinds of work to themselves, and are slower in all of them at what
    hosts do whatever the work, loading input and what is between the steps; and the steps in which that alone is
    judged. One kind of work may have more of it by design, as the first stage; several on one machine do not."""
    machine = node_numbers(timings.nodes)
    own = confined(steps.peers.number, machine)
    if not steps.phased or not own.any():
        return steps, []
    phases = np.zeros_like(steps.phases)
    phases[:, :, _HOSTS] = steps.phases[:, :, _HOSTS]
    alone = dataclasses.replace(steps, phases=phases, busy=over_phases(phases), past=Past.of(None, len(machine), True))
    beside = alone.regrouped(np.zeros(len(machine), np.int64), timings.nodes)
    found = [
        each
        for each in slow_ranks(beside, timings.nodes).slow
        if each.whole_host and own[list(each.columns)].all() and np.ptp(steps.peers.number[list(each.columns)]) > 0
    ]
    return (beside, found) if found else (steps, [])


def _is_slower(steps: Steps, each: Slow) -> bool:
    own = np.isin(np.arange(len(steps.peers.number)), each.columns)
    others = ~own & np.isin(steps.peers.number, steps.peers.number[list(each.columns)])
    phases = steps.phases[each.since : each.until]
    passes, update = (
        median_over_steps(seconds) for seconds in (phases[:, :, _PASSES].sum(axis=2), phases[:, :, _UPDATE])
    )
    usual = [median(seconds[others]) for seconds in (passes, update)]
    if not usual[0] > 0 or usual[1] < MIN_UPDATE_SHARE * median(steps.duration):
        return False
    less, more = sorted(
        median(seconds[own]) / theirs - 1 for seconds, theirs in zip((passes, update), usual, strict=True)
    )
    return less > 0 and less >= UPDATE_PART * more


# Tells of a rank that the others wait for, and whose time belongs to no phase. Pure.
#
# Such time of a single rank accuses nobody (NAMED_SHARE): it may be a wait that no record tells of. But where the
# others wait longer by as much, the job is not well, and the script can say what it does there.

MAX_NOTES: Final = 4


def slow_in_no_phase(timings: JobTimings, steps: Steps) -> list[Slow]:
    """The ranks and machines that others wait for, where all of their time is judged. `steps`: in whose phases nobody
    is slow."""
    if not steps.phased:
        return []
    found = slow_ranks(steps.with_other(), timings.nodes).slow
    return [each for each in found if is_waited_for(steps, each)][:MAX_NOTES]


def unnamed_time_note(timings: JobTimings, each: Slow) -> Note:
    ranks = tuple(sorted(int(timings.ranks[column]) for column in each.columns))
    text = (
        f"{ranks_text(ranks)}: {seconds_text(each.excess)} a step more than its peers in no phase that has a name, and"
        " they wait for it: phase() of laggard.trainer_hooks names what its script does there"
    )
    return Note("unnamed_time", text, ranks[:MAX_NAMED_RANKS], timings.nodes[each.columns[0]])


WAITING_RATIO = 0.08
"""The share of the step from which on ranks that all wait may wait for one that is not seen."""


def missing_ranks_notes(timings: JobTimings) -> list[Note]:
    """One note that names the missing ranks; none where there are none."""
    if len(timings.ranks) >= timings.world_size:
        return []
    seen = set(timings.ranks.tolist())
    missing = itertools.islice((rank for rank in range(timings.world_size) if rank not in seen), MAX_NAMED_RANKS)
    text = f"{len(timings.ranks)} of {timings.world_size} ranks are seen"
    return [Note("partial", text, ranks=tuple(missing))]


def culprit_may_be_missing(timings: JobTimings, steps: Steps) -> Note | None:
    """A note where all ranks that are compared wait, so that one that is not may be what they wait for: it is not seen,
    it takes part in collectives and makes no steps, as one that plays for others to learn from, or the records of most
    of its steps are lost. None: none may."""
    known = np.isfinite(steps.busy).sum(axis=0)
    stepless = timings.ranks[known < MIN_KNOWN].tolist()
    unseen = len(timings.ranks) < timings.world_size
    if not (unseen or stepless) or median(steps.waited / steps.duration[:, None]) <= WAITING_RATIO:
        return None
    if unseen:
        return Note("unseen_ranks", "the ranks that are seen wait for others; the slow rank may be one that is not")
    has, whom = ("has", "it") if len(stepless) == 1 else ("have", "them")
    text = (
        f"the others wait, and {ranks_text(stepless)} {has} too few steps to be compared by: they may wait for {whom}"
    )
    return Note("unseen_ranks", text, ranks=tuple(stepless)[:MAX_NAMED_RANKS])


MIN_WAIT_DIFFERENCE = 0.05
"""The least share of the time by which the rank that waited least has waited less than the next. Our own choice: a
single garbage collection is as much of a step, so that it is a hint and no more."""


def least_wait_notes(timings: JobTimings) -> tuple[Note, ...]:
    """The note on the rank that waited least in collectives, as a slow one does; nothing where nobody stands out, or
    nothing is known."""
    seconds, waited = np.nansum(timings.step_seconds, axis=0), np.nansum(timings.waited_seconds, axis=0)
    known = np.flatnonzero(seconds > 0)
    if not timings.profiled or not timings.waits_recorded or len(known) < 2:
        return ()
    shares = waited[known] / seconds[known]
    order = np.argsort(shares, kind="stable")
    least, second = float(shares[order[0]]), float(shares[order[1]])
    if second - least < MIN_WAIT_DIFFERENCE:
        return ()
    rank = int(timings.ranks[known[order[0]]])
    text = (
        f"in {counted(len(timings.steps), 'step')}, rank {rank} waited least in collectives, {least:.0%} of the time, "
        f"the next {second:.0%}: a hint at who is slow; profile {steps_needed(timings)} steps or more to know"
    )
    return (Note("least_wait", text.replace("%", " %"), ranks=(rank,), node=timings.nodes[known[order[0]]]),)
