"""Describes the slow ranks and machines as culprits: in which phase, by how much, since when, and why. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import counted, joined, phase_text, ranks_text, seconds_text, step_times_text
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.medians import last_axis_median, median, over_phases
from laggard.locate.shares import ALIKE, MIN_COST, MOST
from laggard.locate.slow.ranks import Compared as ComparedRanks
from laggard.locate.slow.ranks import Slow, fast_ranks, is_waited_for
from laggard.locate.slow.replay import Replay
from laggard.locate.slow.steps import MIN_STEPS, PASSES, SCRIPTS, Steps
from laggard.locate.slow.tested import DOUBTED_COST, Turns, confidence
from laggard.locate.slow.uneven_work import Compared, medians, more_work, uneven_work_note
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

# The gain of a job if its slow ranks were as fast as their peers. Pure.
#
# Where the collectives are recorded, the last steps are replayed (replay.py). Time that the replay does not explain,
# such as that until the kernel lets a rank go on after a collective, is taken to stay as it is. Where nothing can be
# replayed, a step is taken to last as long as its busiest rank, with a culprit's busy time brought down to its peers'.

MAX_REPLAYED = 4
"""The most culprits with which the steps are replayed: each takes two more replays."""


class Payoff(NamedTuple):
    """The saving of fixing each culprit, as a share of the step time, and the step time over the step time with all of
    them fixed. `replayed`: what waits for what was known."""

    saved: list[float]
    ratio: float
    replayed: bool = False


_Seconds = Callable[[tuple[Slow, ...]], Floats]
"""What the steps take where such culprits are as fast as their peers: each of them, or all together."""


def _worth(slow: tuple[Slow, ...], seconds: _Seconds) -> list[Floats]:
    """The mean of what fixing each culprit saves before and after all others are fixed: of two that are equally slow
    neither saves anything alone, and each half of what both save."""
    others = [tuple(other for other in slow if other is not each) for each in slow]
    return [
        (seconds(()) - seconds((each,)) + seconds(rest) - seconds(slow)) / 2
        for each, rest in zip(slow, others, strict=True)
    ]


def stalls_beside(steps: Steps, slow: Sequence[Slow]) -> NDArray[np.bool_]:
    """[S]: the steps that are left out of what fixing the culprits saves: stalls, but those of a culprit that is slow
    now and then, which are what it costs."""
    stalled = steps.stalled()
    for each in slow:
        if each.hits is not None:
            stalled &= ~each.hits
    return stalled


def _by_replay(timings: JobTimings, steps: Steps, slow: tuple[Slow, ...]) -> Payoff | None:
    """The payoff by what waits for what; None where that is not known, or where a culprit is slow now and then, or
    no longer: the last steps do not stand for all."""
    if len(slow) > MAX_REPLAYED or any(each.hits is not None or each.until < len(steps.numbers) for each in slow):
        return None
    since = max(each.since for each in slow)
    stalled = np.flatnonzero(stalls_beside(steps, slow))
    replay = Replay.of(timings, steps, max(since, int(stalled[-1]) + 1) if len(stalled) else since)
    if replay is None:
        return None
    seconds = functools.cache(lambda fixed: np.array(replay.seconds(fixed)))
    now, all_fixed = float(seconds(())), float(seconds(slow))
    if not np.isfinite(all_fixed):
        return None
    whole = max(now, replay.recorded)  # of what was recorded, fixing a culprit leaves what the replay does not explain
    shares = [float(np.clip(saved / whole, 0.0, 1.0)) for saved in _worth(slow, seconds)]
    return Payoff(shares, max(whole / max(whole - (now - all_fixed), 1e-9), 1.0), True)


def _by_busiest(steps: Steps, slow: tuple[Slow, ...]) -> Payoff:
    """The payoff where no collective is known: a step lasts as long as its busiest rank."""
    kept = ~stalls_beside(steps, slow)
    seconds = _busiest(steps, slow)
    shares = []
    for each, worth in zip(slow, _worth(slow, seconds), strict=True):
        own = kept & (np.arange(len(kept)) >= each.since)
        saved = np.clip(worth, 0, steps.duration)[own]
        shares.append(float(saved.sum() / max(steps.duration[own].sum(), 1e-9)))
    kept[: min(each.since for each in slow)] = False
    duration = steps.duration[kept]
    left = np.maximum(duration - np.clip(seconds(()) - seconds(slow), 0, None)[kept], 1e-9)
    return Payoff(shares, float(duration.sum() / max(left.sum(), 1e-9)))


def _busiest(steps: Steps, slow: tuple[Slow, ...]) -> _Seconds:
    """[S]: the time of the busiest rank in each step."""
    others = ~np.isin(np.arange(steps.busy.shape[1]), [column for each in slow for column in each.columns])
    rest = np.fmax.reduce(steps.busy, axis=1, where=others[None, :], initial=-np.inf)
    own = {each: np.fmax.reduce(steps.busy[:, each.columns], axis=1) for each in slow}
    place = np.arange(len(rest))
    less = {each: own[each] - np.where(place >= each.since, np.fmax(each.series, 0.0), 0.0) for each in slow}
    return functools.cache(
        lambda fixed: np.fmax.reduce([rest, *(less[each] if each in fixed else own[each] for each in slow)])
    )


INPUT, BETWEEN_STEPS = PHASES.index("input"), PHASES.index("between_steps")
MAX_COMPARED = 64
"""The most peers with which a culprit's phases are compared."""

NO_PHASES_FACTOR = 0.9
"""The factor of the confidence where no phase is known: a wait that no record tells of would look like work."""

ONE_PEER_FACTOR = 0.95
"""The factor of the confidence with a single peer, which may be faster than it should be."""

MAX_NAMED_NODES = 4
PAST = "in its first steps"
"""The words in place of "its peers" for a rank whose work nobody else does."""


class SlowCulprits(NamedTuple):
    """The slow ranks and hosts, the one that is worth most first, and the job's slowdown ratio: its step time over the
    step time without them. `notes`: on ranks that only do what a script leaves to them, or more of it by turns."""

    culprits: tuple[Culprit, ...]
    slowdown_ratio: float
    notes: tuple[Note, ...]


def slow_culprits(timings: JobTimings, steps: Steps, slow: list[Slow]) -> SlowCulprits:
    """Describes the slow ranks and machines whose repair saves MIN_COST of the time, or their part of that."""
    if not slow:
        return SlowCulprits((), 1.0, ())
    saved, ratio, replayed = _by_replay(timings, steps, tuple(slow)) or _by_busiest(steps, tuple(slow))
    # Where work is unequal, the busiest rank tells nothing of what the others wait for.
    is_known = replayed or len(steps.peers.classes) == len(steps.peers.classes[0]) == 1
    kept = [
        each
        for each, share in zip(slow, saved, strict=True)
        if _is_worth_it(steps, each, share * len(slow)) or not is_known and is_waited_for(steps, each, slow)
    ]
    if len(kept) < len(slow):
        return slow_culprits(timings, steps, kept)
    told = [_culprit(timings, steps, slow, *each) for each in zip(slow, saved, strict=True)]
    notes = [uneven_work_note(*each) for each in told]
    if any(notes):
        kept = [each for each, note in zip(slow, notes, strict=True) if not note]
        return slow_culprits(timings, steps, kept)._replace(notes=tuple(filter(None, notes)))
    culprits = sorted((culprit for culprit, _ in told), key=lambda it: -(it.recoverable_ratio or 0.0))
    return SlowCulprits(tuple(culprits), ratio, ())


def _is_worth_it(steps: Steps, each: Slow, saved: float) -> bool:
    """Whether its repair saves MIN_COST of the time of all steps, or its part of that; of a live job, of the time that
    is like now. `saved`: of the time since it became slow."""
    since = float(steps.duration[each.since :].sum())
    is_now = steps.live and each.until == len(steps.numbers)
    return saved * since >= MIN_COST * (since if is_now else float(steps.duration.sum()))


DOUBT: Final = "slow_in_few_steps"
"""The kind of a note on who costs much, and is too seldom slow, or too much like noise, to be accused."""


def doubted_notes(timings: JobTimings, steps: Steps, compared: ComparedRanks) -> tuple[Note, ...]:
    """The note about who costs much, and is too seldom slow, or too much like noise, to be accused."""
    if not compared.slow and (fast := fast_ranks(steps)):
        return (_two_speeds_note(timings, steps, fast),)
    if compared.turns.units:
        return (_turns_note(timings, compared.turns),)
    each = compared.doubted
    if each is None or (not steps.phased and is_excused(timings, steps, each, [each])):
        return ()
    if (told := slow_culprits(timings, steps, [each])).notes:
        return told.notes  # what would be nobody's fault if it were certain
    cost = float(each.series.sum()) / float(steps.duration.sum())
    hits = int((each.series > 0).sum()) if each.hits is None else int(each.hits.sum())
    first, last = int(steps.numbers[each.since]), int(steps.numbers[each.until - 1])
    if _is_warm_up(steps, each):
        text = (
            f"took {seconds_text(each.excess)} longer in the passes of steps {first} to {last}, {cost:.0%} of the time,"
            " and keeps up with the others since: a new process that compiles looks so"
        )
        return (_note_on("stall", timings, each.columns, text),)
    text = (
        f"was slower than the others in {counted(hits, 'step')} between {first} and {last}, by"
        f" {seconds_text(each.excess)} each, {cost:.0%} of the time: too little to tell it from noise, and too costly"
        " to call the job healthy"
    )
    text += f"; some {each.needed} steps like these would decide" if each.needed else ""
    text += f": {told.culprits[0].evidence[0]}" if told.culprits and steps.phased else ""
    return (_note_on(DOUBT, timings, each.columns, text),)


def _is_warm_up(steps: Steps, each: Slow) -> bool:
    """Whether it was late in a few steps in a row alone, each time by more than a whole usual step and in its passes,
    and was not in as many steps since as a verdict needs: a rank's warm-up amid the job. Nothing that works on, however
    slowly, loses several steps' time in each of three steps and nothing in the next ones."""
    late = np.flatnonzero(each.series > 0)
    if np.ptp(late) >= min(WARM_UP_STEPS + 1, len(late)) or len(each.series) - late[-1] <= MIN_STEPS:
        return False
    passes = over_phases(steps.phases[:, list(each.columns)][:, :, PASSES])
    in_passes = median(passes[late]) - median(passes)
    return bool(steps.phased and in_passes > MOST * each.excess and each.excess > median(steps.duration))


def _note_on(kind: str, timings: JobTimings, columns: Sequence[int], text: str) -> Note:
    """A note that begins with the ranks of these columns."""
    ranks = tuple(sorted(int(timings.ranks[column]) for column in columns))
    return Note(kind, f"{ranks_text(ranks)} {text}".replace("%", " %"), ranks=ranks[:MAX_NAMED_RANKS])


def _turns_note(timings: JobTimings, turns: Turns) -> Note:
    text = (
        "were slower than the others by turns, each for longer than other work holds a rank up,"
        f" {turns.cost:.0%} of the time: look for what moves from one to another"
    )
    return _note_on(DOUBT, timings, turns.units, text)


def _two_speeds_note(timings: JobTimings, steps: Steps, fast: Sequence[int]) -> Note:
    faster = -median(last_axis_median(steps.excess[:, list(fast)])) / median(steps.duration)
    nodes = sorted({node for column in fast if (node := timings.nodes[column])})
    where = f"on {joined(nodes)} " if 0 < len(nodes) <= MAX_NAMED_NODES else ""
    text = (
        f"{where}are faster than all others at the same work, by {faster:.0%} of the step, and wait"
        " for them: there are two kinds of machines, clocks or settings, and most are of the slower one"
    )
    return _note_on("two_speeds", timings, fast, text)


def stall_notes(steps: Steps, slow: Sequence[Slow]) -> list[Note]:
    """A note about the steps that are left out of what the culprits cost; none where there are none."""
    stalled = np.flatnonzero(stalls_beside(steps, slow)) if slow else ()
    if not len(stalled):
        return []
    longest = max(stalled, key=lambda place: steps.duration[place])
    number, seconds = int(steps.numbers[longest]), seconds_text(float(steps.duration[longest]))
    usual = seconds_text(median(steps.duration))
    more = f", and {len(stalled) - 1} more were about as long" if len(stalled) > 1 else ""
    text = f"step {number} took {seconds}, where most take {usual}{more}: what fixing it would save leaves that out"
    return [Note("stall", text)]


def scripts_choice(timings: JobTimings, slow: Sequence[Slow]) -> set[int]:
    """The ranks that scripts choose for logging, evaluation and checkpoints: the first and the last, and the first of
    each machine where most of these are among `slow`."""
    ranks = {int(timings.ranks[column]) for each in slow if not each.whole_host for column in each.columns}
    by_node = grouped(zip(timings.nodes, timings.ranks.tolist(), strict=True), lambda it: it[0])
    firsts = {min(rank for _, rank in of_node) for of_node in by_node.values()}
    chosen = {0, timings.world_size - 1}
    return chosen | firsts if len(firsts & ranks) >= max(2, len(firsts) / 2) else chosen


def is_excused(timings: JobTimings, steps: Steps, each: Slow, slow: Sequence[Slow]) -> bool:
    """Whether it stands where scripts leave work to a rank, and that is no coincidence: what it does costs little, or
    comes at regular intervals and seldom, or those places are few among all, and it costs less than a quarter."""
    chosen = scripts_choice(timings, slow)
    if not chosen.issuperset(timings.ranks[list(each.columns)].tolist()):
        return False
    cost = float(each.series.sum()) / float(steps.duration.sum())
    gaps = np.diff(np.flatnonzero(each.hits)) if each.hits is not None else np.zeros(0)
    is_regular = len(gaps) > 1 and len(gaps) < (1 - MOST) * len(each.series) and (gaps == median(gaps)).mean() >= MOST
    return cost < DOUBTED_COST or is_regular or max(cost, len(chosen) / timings.world_size) < 1 - MOST


class _Comparison(NamedTuple):
    """Seconds a step that a culprit's median rank takes, and its peers', since the onset."""

    phase: int
    own: float  # in that phase
    peers: float
    waited: float
    peers_waited: float
    peers_busy: float
    peer_count: int


def _culprit(timings: JobTimings, steps: Steps, slow: list[Slow], each: Slow, saved: float) -> tuple[Culprit, bool]:
    """The culprit, and whether its place or its work excuses it. `saved` is the share of the step time that fixing it
    would save."""
    by_excess = sorted(each.columns, key=lambda it: median(steps.excess[each.since : each.until, it]))
    peers = _peers(steps, slow, by_excess[len(by_excess) // 2])
    slow_steps = np.arange(each.since, each.until) if each.hits is None else np.flatnonzero(each.hits)
    given = Compared(slow_steps, np.array(each.columns), peers)
    compared = _compare(steps, given)
    phase = PHASES[compared.phase]
    ranks = tuple(sorted(int(timings.ranks[column]) for column in each.columns))
    node, gpu = timings.nodes[each.columns[0]], timings.gpus[each.columns[0]]
    more: tuple[str, ...] = ()
    if compared.phase in (*PASSES, BETWEEN_STEPS):  # as reinforcement learning generates there
        more = more_work(steps, given, PASSES if compared.phase in PASSES else (BETWEEN_STEPS,))
    kind = "uneven_work" if more else _kind(steps, each, compared, scripts_choice(timings, slow).issuperset(ranks))
    others = (int(rank) for rank in timings.ranks if int(rank) not in ranks)
    sure = confidence(each.margin) * (1.0 if steps.phased else NO_PHASES_FACTOR)
    culprit = Culprit(
        kind=kind,
        ranks=ranks,
        node=None if kind == "uneven_work" else node,  # no machine is at fault
        gpu=None if each.whole_host or kind == "uneven_work" else gpu,
        phase=phase if phase != "other" else None,
        slowdown_ratio=round((compared.peers_busy + each.excess) / max(compared.peers_busy, 1e-9), 3),
        recoverable_ratio=round(saved, 3),
        since_step=int(steps.numbers[each.since]),
        persistence="persistent" if each.hits is None else "intermittent",
        confidence=round(sure * (1.0 if compared.peer_count > 1 else ONE_PEER_FACTOR), 2),
        evidence=(*more, *_evidence(steps, each, compared)),
        victims=tuple(itertools.islice(others, MAX_NAMED_RANKS)),
        neighbours=() if kind == "slow_host" and each.whole_host else None,
    )
    return culprit, bool(more) or is_excused(timings, steps, each, slow)


def _kind(steps: Steps, each: Slow, compared: _Comparison, placed: bool) -> str:
    """The kind of culprit, by the phase. What peers spend next to no time on they leave to one rank, by the script's
    choice: where it has a name, or the rank is `placed` where scripts do that. Where they do it, too, and faster, it is
    the machine's: one that is slow at what all do takes some times as long, not twenty times. Where no phase is known,
    what such a rank does now and then is its script's."""
    little = max(MIN_COST * median(steps.duration), ALIKE * compared.own)
    alone = compared.peer_count > 0 and compared.peers < little
    chosen = compared.phase in SCRIPTS or compared.phase == BETWEEN_STEPS and placed
    unnamed = placed and not steps.phased and each.hits is not None
    if not each.whole_host and (alone and chosen or unnamed):
        return "uneven_work"
    if each.whole_host or compared.phase == BETWEEN_STEPS or compared.phase in SCRIPTS:
        return "slow_host"
    return "slow_input" if compared.phase == INPUT else "slow_compute"


def _compare(steps: Steps, given: Compared) -> _Comparison:
    """With its own first steps in the place of peers where it has none."""
    rows, columns, peers = given
    first = steps.past.first if not len(peers) and steps.past.alone[columns].all() else None
    longer = {}
    for phase in steps.judged_phases:
        took = medians(steps.phases[:, :, phase], rows, columns)
        usual = medians(steps.phases[:, :, phase], rows, peers) if first is None else median(first[:, columns, phase])
        longer[phase] = median(took - usual)
    known = [phase for phase, seconds in longer.items() if np.isfinite(seconds)]
    phase = max(known, key=lambda each: longer[each]) if known else steps.judged_phases[-1]
    own = median(medians(steps.phases[:, :, phase], rows, columns))
    waited, peers_waited = (median(medians(steps.waited, rows, those)) for those in (columns, peers))
    busy = median(medians(steps.busy, rows, peers) if first is None else steps.past.base[columns])
    return _Comparison(phase, own, own - longer[phase], waited, peers_waited, busy, len(peers))


def _peers(steps: Steps, slow: list[Slow], column: int) -> NDArray[np.int64]:
    """The columns of at most MAX_COMPARED ranks that do the same work as `column`, and are no culprits."""
    same = np.flatnonzero(steps.peers.number == steps.peers.number[column])
    culprits = {other for each in slow for other in each.columns}
    others = [int(other) for other in same[:: max(1, len(same) // MAX_COMPARED)] if other != column]
    return np.array([other for other in others if other not in culprits] or others, np.int64)


def _evidence(steps: Steps, each: Slow, compared: _Comparison) -> tuple[str, ...]:
    series, is_over = each.series[each.since : each.until], each.until < len(steps.numbers)
    whom = "its peers" if compared.peer_count else PAST
    those = f"the {'' if is_over else 'last '}{len(series)} steps"
    how_often = f"busier than {whom} in {int((series > each.excess / 2).sum())} of {those}"
    if each.hits is not None:
        how_often = (
            f"slow in {each.hits.mean():.0%} of the steps ({int(each.hits.sum())} of {len(each.hits)}), then by "
            f"{seconds_text(each.excess)}"
        ).replace("%", " %")
    if is_over:
        how_often += f" until step {steps.numbers[each.until - 1]}, and not since"
    same = int(steps.peers.number.max()) > 0 == np.ptp(steps.peers.number[list(each.columns)])
    whose = "the machine with this work" if same else "the machine"
    all_slow = (f"most of the {len(each.columns)} ranks of {whose} are slow",) if each.whole_host else ()
    waits = f"waits {step_times_text(compared.waited, compared.peers_waited, 'collectives')}"
    when = "" if each.hits is None else "in its slow steps, "
    longer = step_times_text(compared.own, compared.peers, phase_text(PHASES[compared.phase]), whom)
    is_told = compared.peer_count and (compared.waited or compared.peers_waited)
    return (*all_slow, when + longer, *((waits,) if is_told else ()), how_often)
