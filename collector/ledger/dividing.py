"""Divides a job's time among the losses that overlap in it: no second of a rank is given to two. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from laggard.collector.ledger.spans import Order, Span


class Piece(NamedTuple):
    """The seconds of a job's time that the loss at `place` took between `start` and `end`, where nothing changed."""

    place: int
    start: float
    end: float
    seconds: float


def divided(spans: Sequence[Span], cuts: Sequence[float] = ()) -> Iterator[Piece]:
    """The pieces of one job's spans. A moment belongs first to what stops the job, to several in equal parts; else to
    what slows it, by their shares, all of them together for at most the whole moment; what is left of it to work that
    is done again, in equal parts. No piece goes over one of `cuts`."""
    for together in _overlapping(spans):
        if len(together) == 1:
            yield from _alone(together[0], cuts)
        else:
            yield from _swept(together, cuts)


def _overlapping(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The spans that overlap, one after the other: most incidents have their job's time to themselves."""
    together: list[Span] = []
    end = 0.0
    for span in sorted(spans, key=_start):
        if span.end <= span.start:
            continue
        if together and span.start >= end:
            yield together
            together = []
        end = max(end, span.end) if together else span.end
        together.append(span)
    if together:
        yield together


def _start(span: Span) -> float:
    return span.start


def _alone(span: Span, cuts: Sequence[float]) -> Iterator[Piece]:
    share = 1.0 if span.order is not Order.SLOWS else span.share
    inside = [cut for cut in cuts if span.start < cut < span.end]
    if not inside:
        if share > 0:
            yield Piece(span.place, span.start, span.end, share * (span.end - span.start))
        return
    moments = [span.start, *sorted(inside), span.end]
    for start, end in zip(moments, moments[1:], strict=False):
        if share > 0:
            yield Piece(span.place, start, end, share * (end - start))


def _swept(begins: Sequence[Span], cuts: Sequence[float]) -> Iterator[Piece]:
    """The pieces of spans that overlap, in the order in which they begin."""
    last = max(span.end for span in begins)
    inside = (cut for cut in cuts if begins[0].start < cut < last)
    moments = sorted({*(it.start for it in begins), *(it.end for it in begins), *inside})
    active: list[Span] = []
    following = 0
    for start, end in zip(moments, moments[1:], strict=False):
        active = [span for span in active if span.end > start]
        while following < len(begins) and begins[following].start <= start:
            active.append(begins[following])
            following += 1
        for place, share in _shared(active):
            if share > 0:
                yield Piece(place, start, end, share * (end - start))


def _shared(active: Sequence[Span]) -> Iterator[tuple[int, float]]:
    if len(active) == 1 and active[0].order is Order.SLOWS:
        yield active[0].place, active[0].share
        return
    stopping = [span for span in active if span.order is Order.STOPS]
    if stopping:
        yield from ((span.place, 1 / len(stopping)) for span in stopping)
        return
    slowing = [span for span in active if span.order is Order.SLOWS]
    total = sum(span.share for span in slowing)
    scale = 1 / total if total > 1 else 1.0
    yield from ((span.place, span.share * scale) for span in slowing)
    again = [span for span in active if span.order is Order.AGAIN]
    left = max(0.0, 1 - total)
    yield from ((span.place, left / len(again)) for span in again)
