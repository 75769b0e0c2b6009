"""The ranks that keep a job from going on, by what Prometheus has of its ranks: whether each runs, waits in a
collective, and gives signs of life. No clock is compared with another. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.prometheus.counters import Floats, Mask
from laggard.locate.partial_verdict import PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.text.words import counted, ranks_text

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
    seen = np.isfinite(ranks.up)
    runs = seen & (ranks.up > 0)
    if len(seen) and not seen.any():  # Prometheus was away: whether they run is not known
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
    where = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    ranks = tuple(int(number) for number in numbers[:MAX_NAMED_RANKS])
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
