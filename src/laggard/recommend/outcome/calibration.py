"""The record of each kind of advice, how often it was right: the product judged by its own record. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from laggard.recommend.outcome.values import (
    GAINED,
    LOST,
    NO,
    NO_DIFFERENCE,
    YES,
    Advised,
    KindOutcomes,
)

WAITING: Final = "waiting"
NOT_DONE: Final = "not_done"
NOT_KNOWN: Final = "not_known"
NOT_COMPARABLE: Final = "not_comparable"

OUTCOMES: Final = (WAITING, NOT_DONE, NOT_KNOWN, GAINED, NO_DIFFERENCE, LOST, NOT_COMPARABLE)
"""The outcomes that advice can have. The last four were done."""

MAX_KINDS: Final = 256
"""The most kinds of a table."""

TARGETS: Final = frozenset(
    ("culprit", "finding", "nccl_env", "nccl_tuner", "deepspeed", "launcher", "pcie", "nic", "host", "hostfile")
)
"""The targets that the metric tells apart; whatever else there is counts as `other`."""


def outcome_of(advised: Advised) -> str:
    """One of OUTCOMES."""
    told = advised.outcome
    if told is None:
        return WAITING
    if told.done == NO:
        return NOT_DONE
    if told.done != YES:
        return NOT_KNOWN
    return told.result if told.result in (GAINED, NO_DIFFERENCE, LOST) else NOT_COMPARABLE


def outcomes_by_kind(advised: Iterable[Advised]) -> tuple[KindOutcomes, ...]:
    """The kinds that were done most often first; of many, MAX_KINDS."""
    found: dict[str, Counter[str]] = {}
    for it in advised:
        counts = found.setdefault(it.kind, Counter())
        counts[outcome_of(it)] += 1
        if it.outcome is not None and it.outcome.as_promised is not None:
            counts["promised"] += 1
            counts["as_promised"] += it.outcome.as_promised
    kinds = [_of_kind(kind, counts) for kind, counts in found.items()]
    return tuple(sorted(kinds, key=lambda it: (-it.done, -it.advised, it.kind))[:MAX_KINDS])


def _of_kind(kind: str, counts: Counter[str]) -> KindOutcomes:
    done = sum(counts[name] for name in (GAINED, NO_DIFFERENCE, LOST, NOT_COMPARABLE))
    return KindOutcomes(
        kind=kind,
        advised=sum(counts[name] for name in OUTCOMES),
        waiting=counts[WAITING],
        done=done,
        not_done=counts[NOT_DONE],
        not_known=counts[NOT_KNOWN],
        gained=counts[GAINED],
        no_difference=counts[NO_DIFFERENCE],
        lost=counts[LOST],
        not_comparable=counts[NOT_COMPARABLE],
        promised=counts["promised"],
        as_promised=counts["as_promised"],
    )


def outcomes_by_target(advised: Iterable[Advised]) -> dict[tuple[str, str], int]:
    """Counts pieces of advice, by target and outcome: bounded, whatever their keys are."""
    pairs = ((it.target if it.target in TARGETS else "other", outcome_of(it)) for it in advised)
    return dict(Counter(pairs))
