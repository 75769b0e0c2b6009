"""The suspect's part of a ring's document, from what was measured of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from laggard.rings.bandwidth import bus_factor
from laggard.rings.document import Suspect, Swap
from laggard.rings.pairs.judge import culprits_of
from laggard.rings.pairs.rounds import PairsMeasured
from laggard.rings.pairs.suspect import SuspectJudgement, without_places


class Computing(NamedTuple):
    """What was measured of the suspect's computing: its rate over its peers' median, whether that is slow, how many
    values were wrong, and why it could not be judged (empty: it was)."""

    ratio: float | None
    slow: bool
    wrong: int
    unknown: str


def suspect_of(
    number: int,
    node: str,
    measured: PairsMeasured,
    judged: SuspectJudgement,
    computing: Computing,
    size_bytes: int,
    ranks: int,
) -> Suspect:
    """`ranks`: of a pair. What is wrong, gone or slow in any way confirms the suspicion; to be acquitted the node has
    to be as fast as its peers in all."""
    outcome, why = _outcome(number, measured, judged, computing)
    return Suspect(
        number,
        node,
        outcome,
        why,
        None if judged.ratio is None else 1 / judged.ratio,
        computing.ratio,
        tuple(_swap(places, times, size_bytes, ranks) for places, times in sorted(measured.times.items())),
    )


def _outcome(number: int, measured: PairsMeasured, judged: SuspectJudgement, computing: Computing) -> tuple[str, str]:
    left = next((failure for failure in measured.lost if failure.node == number), None)
    if left is not None:
        return ("unknown" if left.left else "confirmed"), f"it left the ring: {left.text}"
    wrong_pairs, _ = culprits_of(without_places({pair: (0.0,) * n for pair, n in measured.wrong.items()}))
    if computing.wrong or number in wrong_pairs:
        return "confirmed", "it gave wrong results"
    if computing.slow and computing.ratio is not None:
        return "confirmed", f"it computes at {_percent(computing.ratio)} of its peers' rate"
    if judged.outcome == "acquitted" and computing.unknown:
        return "unknown", f"{judged.why}, but its computing could not be judged: {computing.unknown}"
    if judged.outcome == "unknown" and not measured.complete:
        return "unknown", f"--seconds were over: {judged.why}"
    return judged.outcome, judged.why


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _swap(places: tuple[int, int], times: Sequence[float], size_bytes: int, ranks: int) -> Swap:
    best = min(times)
    if math.isinf(best):
        return Swap(*places, len(times), None, None)
    return Swap(*places, len(times), best, size_bytes / best * bus_factor("all_reduce", ranks))


def pairs_without_places(measured: PairsMeasured) -> PairsMeasured:
    """The same by pairs, whichever place each node had, for the matrix and the findings."""
    wrong: dict[tuple[int, int], int] = {}
    for pair, count in measured.wrong.items():
        key = min(pair), max(pair)
        wrong[key] = wrong.get(key, 0) + count
    return measured._replace(
        times=without_places(measured.times),
        wrong=wrong,
        errors=_by_pair(measured.errors),
        disturbed=_by_pair(measured.disturbed),
        complete=True,
    )


def _by_pair(texts: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    return {(min(pair), max(pair)): text for pair, text in texts.items()}
