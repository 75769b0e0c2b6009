"""The ledger: what incidents cost, in GPU-hours, by node, cause, user or week. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from msgspec import Struct

from laggard.collector.incidents.incident import WEEK_SECONDS
from laggard.collector.incidents.loss import Loss
from laggard.collector.incidents.run import Run
from laggard.collector.ledger.dividing import Piece, divided
from laggard.collector.ledger.goodput import JobGoodput, goodputs
from laggard.collector.ledger.interval import Amount, Reading, added
from laggard.collector.ledger.spans import JobRuns, loses_unseen_work, spans_of

GROUPS: Final = ("node", "cause", "user", "week")
"""The ways to divide a ledger."""

NO_NODE: Final = "no machine"
"""The row of losses that are of a job and at no machine."""

MAX_ROWS: Final = 1000
"""The most rows of an answer, the dearest; the others are in one row, OTHERS."""

OTHERS: Final = "all others"

_FIRST_MONDAY: Final = 4 * 86400.0
"""The first Monday after 1970-01-01, 00:00 UTC."""


class CostRow(Struct, frozen=True):
    """The cost of a node, a cause, a user or a week: GPU-hours, and how many incidents took them."""

    name: str
    gpu_hours: Amount
    incidents: int


class CostDocument(Struct, frozen=True):
    """`laggard.cost/1`: what incidents took between `since` and `until` (Unix seconds), in GPU-hours: a rank's hour is
    one. `by`: what `rows` are, the dearest first (weeks in their order); they add up to `total`'s likely figure.
    `money` is the total in `currency`, at `gpu_hour_price`; None where the site gives no price. `incidents` were
    counted; `uncounted` were not: their job's size is not known, or a release that did not count saw them.
    `unseen_work`: stops of which no checkpoint was seen, so that the work done again is missing. `jobs`: those with the
    most GPU-hours."""

    since: float
    until: float
    by: str
    total: Amount
    rows: tuple[CostRow, ...]
    incidents: int
    uncounted: int
    unseen_work: int
    jobs: tuple[JobGoodput, ...] = ()
    gpu_hour_price: float | None = None
    currency: str = ""
    money: Amount | None = None
    history: str = ""
    schema: str = "laggard.cost/1"


class _Taken(NamedTuple):
    """The seconds of a job that one loss took in one week."""

    place: int
    week: int
    likely: float
    least: float
    most: float


def ledger(
    losses: Sequence[Loss],
    runs: Sequence[Run],
    since: float,
    until: float,
    by: str = "cause",
    user_name: Callable[[int], str] = str,
    price: float | None = None,
    currency: str = "",
) -> CostDocument:
    """The sum of the losses between `since` and `until`. `price`: of a GPU-hour."""
    job_runs = JobRuns(runs)
    counted = [it for it in losses if it.ranks and it.lost_seconds is not None]
    taken = list(_taken(counted, job_runs, since, until))
    total = added(_reading(counted[it.place], it) for it in taken)
    known = {it.place for it in taken}
    return CostDocument(
        since=since,
        until=until,
        by=by,
        total=total,
        rows=_rows(counted, taken, by, user_name),
        incidents=len(known),
        uncounted=sum(it.opened_at < until for it in losses) - sum(it.opened_at < until for it in counted),
        unseen_work=sum(loses_unseen_work(counted[place], job_runs) for place in known),
        jobs=goodputs(run for run in runs if run.began_at < until),
        gpu_hour_price=price,
        currency=currency,
        money=None if price is None else total.times(price),
    )


def _taken(losses: Sequence[Loss], runs: JobRuns, since: float, until: float) -> Iterator[_Taken]:
    """The seconds of each loss, week by week, each once with every bound."""
    cuts = (since, until, *_week_begins(since, until))
    for places in _by_job(losses):
        each = [spans_of(place, losses[place], runs) for place in places]
        found: dict[tuple[int, int], list[float]] = {}
        for column, of_bound in enumerate(zip(*each, strict=True)):
            for piece in divided([span for spans in of_bound for span in spans], cuts):
                if since <= piece.start and piece.end <= until:
                    found.setdefault((piece.place, _week(piece)), [0.0, 0.0, 0.0])[column] += piece.seconds
        for (place, week), (likely, least, most) in found.items():
            yield _Taken(place, week, likely, min(least, likely), max(most, likely))


def _by_job(losses: Sequence[Loss]) -> Iterable[list[int]]:
    """The places of the losses of each job."""
    by_job: dict[tuple[int, str], list[int]] = {}
    for place, it in enumerate(losses):
        by_job.setdefault((it.owner, it.job_id), []).append(place)
    return by_job.values()


def _reading(loss: Loss, taken: _Taken, part: float = 1.0) -> Reading:
    hours = part * loss.ranks / 3600
    same = (loss.owner, loss.job_id, loss.cause, loss.nodes)
    return Reading(taken.likely * hours, taken.least * hours, taken.most * hours, same, not loss.stops)


def _rows(
    losses: Sequence[Loss], taken: Sequence[_Taken], by: str, user_name: Callable[[int], str]
) -> tuple[CostRow, ...]:
    user_name = functools.cache(user_name)  # the user database is a file that is read anew for each question
    readings: dict[str, list[Reading]] = {}
    places: dict[str, set[int]] = {}
    for it in taken:
        loss = losses[it.place]
        names = _names(loss, it.week, by, user_name)
        for name in names:
            readings.setdefault(name, []).append(_reading(loss, it, 1 / len(names)))
            places.setdefault(name, set()).add(it.place)
    rows = [CostRow(name, added(those), len(places[name])) for name, those in readings.items()]
    if by == "week":
        return tuple(sorted(rows, key=lambda it: it.name))
    rows.sort(key=lambda it: (-it.gpu_hours.likely, it.name))
    if len(rows) <= MAX_ROWS:
        return tuple(rows)
    rest = [row.name for row in rows[MAX_ROWS - 1 :]]
    others = added(reading for name in rest for reading in readings[name])
    return (*rows[: MAX_ROWS - 1], CostRow(OTHERS, others, len(set().union(*(places[name] for name in rest)))))


def _names(loss: Loss, week: int, by: str, user_name: Callable[[int], str]) -> Sequence[str]:
    """The rows in which a loss stands, in equal parts."""
    if by == "node":
        return loss.nodes or (NO_NODE,)
    if by == "user":
        return (user_name(loss.owner),)
    return (loss.cause,) if by == "cause" else (_week_name(week),)


def _week(piece: Piece) -> int:
    return int((piece.start - _FIRST_MONDAY) // WEEK_SECONDS)


def _week_name(week: int) -> str:
    """`2026-W48`: by ISO 8601, weeks begin on Monday, 00:00 UTC."""
    begin = datetime.fromtimestamp(_FIRST_MONDAY + week * WEEK_SECONDS, timezone.utc)
    return f"{begin:%G-W%V}"


def _week_begins(since: float, until: float) -> Iterator[float]:
    begin = _FIRST_MONDAY + ((since - _FIRST_MONDAY) // WEEK_SECONDS + 1) * WEEK_SECONDS
    while begin < until:
        yield begin
        begin += WEEK_SECONDS


def by_node_hours(document: CostDocument) -> Mapping[str, float]:
    """The likely GPU-hours of each node of a ledger by node."""
    return {row.name: row.gpu_hours.likely for row in document.rows if row.name not in (NO_NODE, OTHERS)}
