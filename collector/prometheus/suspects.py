"""The ranks that the counters make suspect: those that stand out at three moments, those slow in a phase, those that
stop the job. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.collector.prometheus.counters import (
    FIRST_INTERVAL,
    INTERVALS,
    Counters,
    Floats,
    Mask,
    differences,
    intervals,
)
from laggard.kit.constants import PHASES
from laggard.kit.words import counted, listed, phase_text, ranks_text, step_times_text
from laggard.locate.medians import median
from laggard.locate.partial_verdict import PartialVerdict
from laggard.locate.shares import MIN_COST
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MAX_RANKS = 64
"""The number of suspects whose phases are asked for, and that of their peers."""

COARSE_FACTOR = 0.85
"""The factor of the confidence by averages: averages over many steps hide which of them were slow, and no wait is
looked at."""

WAITS_LONGER_FACTOR = 0.5
"""The factor of the confidence where a suspect waits longer than its peers do: who is waited for waits least."""

_INPUT, _OPTIMIZER = PHASES.index("input"), PHASES.index("optimizer")


class Detail(NamedTuple):
    """The times of the suspects and some peers: seconds a step, on average, [K, N, len(PHASES)] by phase and [K, N] in
    collectives; nan where not known. `column` is where each rank is."""

    column: Mapping[int, int]
    phases: Floats
    collectives: Floats


def chosen(culprits: Sequence[Culprit], ranks: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The ranks to ask about: the culprits', and peers from all over the job."""
    suspects = list(dict.fromkeys(rank for culprit in culprits for rank in culprit.ranks))[:MAX_RANKS]
    accused = {rank for culprit in culprits for rank in culprit.ranks}
    spread = ranks[:: max(1, len(ranks) // (MAX_RANKS + len(accused)))]
    return suspects, [int(rank) for rank in spread if int(rank) not in accused][:MAX_RANKS]


def detail(
    asked: Sequence[int], made: Floats, phase_tables: Mapping[str, Floats], collective_seconds: Floats
) -> Detail:
    """`made` [K, N]: how many steps the asked ranks made in each interval; the tables are [T, N]."""
    phases = np.full((len(made), len(asked), len(PHASES)), np.nan)
    for name, values in phase_tables.items():
        if name in PHASES:
            phases[:, :, PHASES.index(name)] = differences(values) / made
    return Detail({rank: place for place, rank in enumerate(asked)}, phases, differences(collective_seconds) / made)


def described(culprit: Culprit, found: Detail, peers: Sequence[int]) -> Culprit:
    """The culprit with its phase, and with evidence in seconds a step."""
    own = [found.column[rank] for rank in culprit.ranks if rank in found.column]
    others = [found.column[rank] for rank in peers if rank in found.column]
    since = slice(max(0, (culprit.since_step or FIRST_INTERVAL) - FIRST_INTERVAL), None)
    mine, theirs = _typical(found.phases[since][:, own]), _typical(found.phases[since][:, others])
    excess = (mine - theirs)[: PHASES.index("other")]
    confidence = culprit.confidence * COARSE_FACTOR
    evidence = [f"averages over {INTERVALS - since.start} of {INTERVALS} intervals that Prometheus holds"]
    kind, phase = culprit.kind, None
    if np.isfinite(excess).any():
        place = int(np.nanargmax(excess))
        phase = PHASES[place]
        evidence.insert(0, step_times_text(float(mine[place]), float(theirs[place]), phase_text(phase)))
        if kind != "slow_host":
            kind = "slow_input" if place == _INPUT else "slow_host" if place > _OPTIMIZER else "slow_compute"
    waited, peers_waited = median(found.collectives[since][:, own]), median(found.collectives[since][:, others])
    if np.isfinite(waited) and np.isfinite(peers_waited):
        evidence.insert(1, f"waits {step_times_text(waited, peers_waited, 'collectives')}")
        confidence *= WAITS_LONGER_FACTOR if waited > peers_waited else 1.0
    sure = round(confidence, 2)
    return structs.replace(culprit, kind=kind, phase=phase, confidence=sure, evidence=tuple(evidence))


def _typical(values: Floats) -> Floats:
    """[P]: the median over intervals and ranks of `values` [K, N, P]."""
    return np.array([median(values[:, :, place]) for place in range(values.shape[2])])


MAX_UNSCREENED_RANKS = 2048
"""The most ranks of a job that is looked at closely as a whole."""

MAX_CANDIDATES = 1024
PEER_RANKS = 512

MIN_EXCESS_RATIO = MIN_COST
"""The share of the step by which a rank has to exceed the median in half of the time to be looked at: all that are slow
enough to be accused do."""


def screened(counters: Counters) -> list[int]:
    """The numbers of the ranks to be looked at closely."""
    if len(counters.ranks) <= MAX_UNSCREENED_RANKS:
        return [int(rank) for rank in counters.ranks]
    found = intervals(counters)
    busy = found.work + found.input
    known = np.isfinite(busy).any(axis=1)
    if not known.any():
        return [int(rank) for rank in counters.ranks[:: max(1, len(counters.ranks) // PEER_RANKS)]]
    excess = (busy[known] - np.nanmedian(busy[known], axis=1, keepdims=True)) / found.step[known, None]
    score = np.where(np.isfinite(excess), excess, -np.inf).max(axis=0)
    best = np.argsort(-score)[:MAX_CANDIDATES]
    candidates = best[score[best] > MIN_EXCESS_RATIO]
    spread = np.arange(0, len(counters.ranks), max(1, len(counters.ranks) // PEER_RANKS))
    chosen = np.unique(np.concatenate((candidates, _mates(counters, candidates), spread)))
    return [int(rank) for rank in counters.ranks[chosen]]


def _mates(counters: Counters, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The columns of all ranks on the candidates' machines; at most MAX_CANDIDATES, those of the worst first."""
    order: dict[str, int] = {}
    for column in candidates.tolist():
        if (machine := counters.machines[column]) is not None:
            order.setdefault(machine, len(order))
    mates = [(order[machine], column) for column, machine in enumerate(counters.machines) if machine in order]
    return np.array([column for _, column in sorted(mates)[:MAX_CANDIDATES]], np.int64)


# The ranks that keep a job from going on, by what Prometheus has of its ranks: whether each runs, waits in a
# collective, and gives signs of life. No clock is compared with another. Pure.

STALLED_SHARE = 0.5
"""The largest share of the ranks that may not wait: where more do not, it is not they that the others wait for."""

CONFIDENCE = {"dead": 0.8, "hung": 0.7}
"""The confidence by the states of processes alone: which collective it was is not known here. Our own choice."""


class Ranks(NamedTuple):
    """[R] each, nan where there is no sample now. `beat_moved` and `progress_moved`: by how many seconds these moments
    have moved over the last `seconds`."""

    numbers: NDArray[np.int64]
    nodes: tuple[str | None, ...]
    up: Floats
    in_flight: Floats
    beat_moved: Floats
    progress_moved: Floats
    seconds: float


def stalled_by(ranks: Ranks, stalled_seconds: float) -> PartialVerdict:
    """The culprits of a job that has made no step for `stalled_seconds`; none, with a note that says why, where nobody
    can be told from here."""
    # Of a process that runs, a collective that is not known is not the same as none.
    told = np.isfinite(ranks.in_flight) & np.isfinite(ranks.progress_moved)
    seen = np.isfinite(ranks.up) & (told | ~(ranks.up > 0))
    runs = seen & (ranks.up > 0)
    if len(seen) and not seen.any():  # whether they run is not known, as after Prometheus was away
        return PartialVerdict((), (silent_note(ranks.numbers, ranks.nodes, ~seen),))
    if not runs.any():
        return PartialVerdict((), (Note("ended", "no process of the job runs any more"),))
    waits = runs & (ranks.in_flight >= ranks.seconds / 2)
    silent = runs & (ranks.beat_moved == 0)
    gone = seen & ~runs
    idle = runs & ~waits & ~silent & ~(ranks.progress_moved > 0)
    if (waits & ~silent).sum() < (1 - STALLED_SHARE) * seen.sum():
        return PartialVerdict((), (_nobody_waits(stalled_seconds),))
    for suspects, kind, how in (
        (gone, "dead", "its process is gone"),
        (silent, "hung", "its process gives no sign of life: it is stopped, or something holds Python's lock"),
        (idle, "hung", "it is in no collective, and gets on with nothing else"),
    ):
        if suspects.any():
            return PartialVerdict(tuple(_culprits(ranks, suspects, waits & ~silent, kind, how)))
    missing = ranks.numbers[~seen]
    if len(missing):
        return PartialVerdict((), (silent_note(ranks.numbers[~seen], ranks.nodes, ~seen),))
    text = f"no step for {stalled_seconds:.0f} s: all {len(runs)} ranks stand in a collective"
    return PartialVerdict((), (Note("hang", f"{text}; which of them it is, only the agents or a recording tell"),))


def silent_note(numbers: NDArray[np.int64], nodes: Sequence[str | None], absent: Mask) -> Note:
    places = sorted({nodes[int(column)] or "an unknown machine" for column in np.flatnonzero(absent)})
    ranks = tuple(int(number) for number in numbers[:MAX_NAMED_RANKS])
    where = listed(places, 4)
    text = f"{ranks_text(int(number) for number in numbers)} on {where} no longer scraped, or later: not judged"
    return Note("silent_ranks", text, ranks)


def _nobody_waits(seconds: float) -> Note:
    text = f"no step for {seconds:.0f} s, and most ranks are in no collective: a checkpoint, an evaluation, compiling"
    return Note("no_steps", text)


def _culprits(ranks: Ranks, suspects: Mask, waits: Mask, kind: str, how: str) -> list[Culprit]:
    """One culprit for each machine."""
    by_node: dict[str | int, list[int]] = {}
    for column in np.flatnonzero(suspects):
        by_node.setdefault(ranks.nodes[column] or int(column), []).append(int(column))
    longest = float(np.max(ranks.in_flight[waits]))
    waiting = ranks.numbers[waits]
    line = f"{counted(len(waiting), 'rank')} of {len(suspects)} in a collective, the longest for {longest:.0f} s"
    return [
        Culprit(
            kind=kind,
            ranks=tuple(int(ranks.numbers[column]) for column in columns),
            node=ranks.nodes[columns[0]],
            confidence=CONFIDENCE[kind],
            evidence=(how, line),
            victims=tuple(int(rank) for rank in itertools.islice(waiting, MAX_NAMED_RANKS)),
        )
        for columns in by_node.values()
    ]
