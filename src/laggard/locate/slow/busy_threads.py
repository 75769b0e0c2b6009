"""Explains slow ranks by the threads of their own process that run beside the training and hold Python's lock. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.words import counted, ranks_text, seconds_text, step_times_text
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings, OwnThreads
from laggard.locate.medians import last_axis_median, median, median_over_steps, middle
from laggard.locate.slow.ranks import MIN_KNOWN, Slow, is_waited_for, slow_ranks
from laggard.locate.slow.steps import OTHER, Steps, steps_needed
from laggard.locate.slow.uneven_work import MIN_UPDATE_SHARE
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


def slow_at_their_own_experts(
    steps: Steps, nodes: Sequence[str | None], stages: NDArray[np.int32]
) -> tuple[Steps, list[Slow]]:
    """The ranks without peers that are slow in passes and update beside the others of their stage [R], and the steps in
    which these are compared; empty where the update tells nothing."""
    alone = steps.peers.sizes == 1
    _, number, size = np.unique(stages, return_inverse=True, return_counts=True)
    judged = alone & (size[number] >= MIN_RANKS)
    if not steps.phased or not judged.any():
        return steps, []
    beside = steps.regrouped(number, nodes)
    found = [each for each in slow_ranks(beside, nodes).slow if judged[list(each.columns)].all()]
    return beside, [each for each in found if _is_slower(beside, each) and is_waited_for(beside, each)]


def _is_slower(steps: Steps, each: Slow) -> bool:
    own = np.isin(np.arange(len(steps.peers.number)), each.columns)
    others = ~own & np.isin(steps.peers.number, steps.peers.number[list(each.columns)])
    phases = steps.phases[each.since : each.until]
    passes, update = _ratio(phases[:, :, _PASSES].sum(axis=2), own, others), _ratio(phases[:, :, _UPDATE], own, others)
    tells = median(median_over_steps(phases[:, others, _UPDATE])) >= MIN_UPDATE_SHARE * median(steps.duration)
    less, more = sorted((passes - 1, update - 1))
    return tells and less > 0 and less >= UPDATE_PART * more


def _ratio(seconds: Floats, own: NDArray[np.bool_], others: NDArray[np.bool_]) -> float:
    """How many times as long as the `others` [R] the ranks `own` [R] take, by medians."""
    level = median_over_steps(seconds)
    usual = median(level[others])
    return median(level[own]) / usual if usual > 0 else 0.0


# Tells of a rank that the others wait for, and whose time belongs to no phase. Pure.
#
# Such time of a single rank accuses nobody (NAMED_SHARE): it may be a wait that no record tells of. But where the
# others wait longer by as much, the job is not well, and the script can say what it does there. Where it is the time of
# a machine's ranks, it is the machine's.

MAX_NOTES: Final = 4
MIN_SHARE: Final = 0.5
"""The least share of a rank's excess that is time in no phase."""


def slow_in_no_phase(timings: JobTimings, steps: Steps) -> tuple[Steps, list[Slow]]:
    """The ranks and machines that others wait for, and the steps in which all of their time is judged. `steps`: in
    whose phases nobody is slow."""
    if not steps.phased:
        return steps, []
    whole = steps.with_other()
    return whole, [each for each in slow_ranks(whole, timings.nodes).slow if is_waited_for(steps, each)]


def unnamed_time_notes(timings: JobTimings, steps: Steps, slow: Sequence[Slow]) -> tuple[Note, ...]:
    """A note on each rank of `slow`, the slowest first."""
    return tuple(filter(None, (_note(timings, steps, each) for each in slow[:MAX_NOTES])))


def accuses(notes: Sequence[Note]) -> bool:
    """Whether one of the notes is on another rank than 0, which has work of its own in every script."""
    return any(rank != 0 for note in notes for rank in note.ranks)


def _note(timings: JobTimings, steps: Steps, each: Slow) -> Note | None:
    (column,) = each.columns
    same = steps.peers.number == steps.peers.number[column]
    peers = np.flatnonzero(same & (np.arange(len(same)) != column))
    unnamed = steps.phases[each.since : each.until, :, OTHER]
    own, theirs = median(unnamed[:, column]), median(last_axis_median(unnamed[:, peers])) if len(peers) else 0.0
    if own - theirs < MIN_SHARE * each.excess:
        return None
    rank = int(timings.ranks[column])
    times = step_times_text(own, theirs, "no phase that has a name")
    to_do = "phase() of laggard.trainer_hooks names what its script does there"
    return Note("unnamed_time", f"rank {rank}: {times}, and they wait for it: {to_do}", (rank,), timings.nodes[column])


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
    text = _stepless_text(stepless, bool(known[known < MIN_KNOWN].any()))
    return Note("unseen_ranks", text, ranks=tuple(stepless)[:MAX_NAMED_RANKS])


def _stepless_text(ranks: Sequence[int], some: bool) -> str:
    """`some`: whether a few steps of one of them are known."""
    has, whom = ("has", "it") if len(ranks) == 1 else ("have", "them")
    steps = "too few steps" if some else "no steps"
    return f"the others wait, and {ranks_text(ranks)} {has} {steps} to be compared by: they may wait for {whom}"


# The note on a job of one rank: where the time of its steps goes. Nothing tells whether that is slow. Pure.

ONE_RANK_MIN_SHARE: Final = 0.02
"""The share of the step below which phases are left out."""


def one_rank_note(timings: JobTimings) -> Note:
    """Says that a rank is slow compared with its peers only, and in what it spends a step."""
    text = "one rank seen, two are needed: a rank is slow compared with its peers"
    shares = _shares(timings)
    if shares:
        text = f"{text}; {shares}"
    return Note("too_few_ranks", text)


def _shares(timings: JobTimings) -> str:
    """`its step of 52 ms is 40 % input, 30 % forward`; empty where no step is known."""
    kept = (timings.steps >= WARM_UP_STEPS) & np.isfinite(timings.step_seconds[:, 0])
    if len(timings.ranks) != 1 or not kept.any():
        return ""
    step = median(timings.step_seconds[kept, 0])
    means = {
        name.replace("_", " "): float(timings.phase_seconds[kept, 0, place].mean()) for place, name in enumerate(PHASES)
    }
    means["waiting in collectives"] = float(timings.waited_seconds[kept, 0].mean())
    whole = sum(means.values())
    told = sorted(
        ((spent / whole, name) for name, spent in means.items() if spent > ONE_RANK_MIN_SHARE * whole), reverse=True
    )
    return f"its step of {seconds_text(step)} is " + ", ".join(f"{share * 100:.0f} % {name}" for share, name in told)


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
