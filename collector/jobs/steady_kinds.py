"""Keeps the kind of a live job's slow culprit. Of a rank near a threshold each verdict would name another kind, and who
is told would look for another cause each time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from laggard.locate.slow.host_facts import NOT_KNOWN
from laggard.model import Culprit

OTHER_KIND_SECONDS = 30.0
"""The time for which each verdict must name the other kind before it is taken over."""

FORGOTTEN_SECONDS = 60.0
"""The time without being named after which a culprit's kind is decided anew."""

_KINDS = ("slow_compute", "slow_host", "slow_input")

Place = tuple[tuple[int, ...], str | None]
"""The culprit's ranks and phase: the same ranks in another phase have another cause."""


class Kept(NamedTuple):
    """The culprit as it was told last with the kind that it has, when it was named last (monotonic seconds), and since
    when each verdict has named another kind; None: the last one named this kind."""

    culprit: Culprit
    at: float
    other_since: float | None = None


def steady(
    culprits: Sequence[Culprit], before: Mapping[Place, Kept], now: float
) -> tuple[tuple[Culprit, ...], dict[Place, Kept]]:
    """The culprits of a new verdict, each with the kind that it had `before` until another has lasted; and what to pass
    as `before` the next time."""
    kept = {place: each for place, each in before.items() if now - each.at <= FORGOTTEN_SECONDS}
    told = []
    for culprit in culprits:
        place = culprit.ranks, culprit.phase
        if culprit.kind in _KINDS:
            kept[place] = _next(culprit, kept.get(place), now)
            culprit = _with_kind_of(culprit, kept[place])
        told.append(culprit)
    return tuple(told), kept


def _next(new: Culprit, before: Kept | None, now: float) -> Kept:
    if before is None or before.culprit.kind == new.kind or NOT_KNOWN in before.culprit.evidence:
        return Kept(new, now)
    since = now if before.other_since is None else before.other_since
    return Kept(new, now) if now - since >= OTHER_KIND_SECONDS else Kept(before.culprit, now, since)


def _with_kind_of(new: Culprit, kept: Kept) -> Culprit:
    """The numbers are the new verdict's; what the kind rests on, and what to do about it, is the kept one's."""
    former = kept.culprit
    if former.kind == new.kind:
        return new
    evidence = (former.evidence[0], *new.evidence) if former.kind == "slow_host" else new.evidence
    return structs.replace(
        new, kind=former.kind, evidence=evidence, neighbours=former.neighbours, advice=former.advice or new.advice
    )
