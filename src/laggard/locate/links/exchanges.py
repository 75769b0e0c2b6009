"""Names the way between two machines, or the adapter, that is slow in exchanges, where nothing else tells. Pure.

In an exchange (all_to_all) each member is done once its own parts have come, as NCCL carries it out by sends and
receives. So a slow way between two machines holds up the members on these two, and no other; a slow adapter or machine
holds up all, and the member behind it the most, since it has one of its parts to move for each of theirs. How long a
member was held up shows in the exchanges to which it came last: the shortest ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.collectives import Collectives, Numbers
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.links.channels import Ways, blocked_seconds, grouped
from laggard.locate.links.slow_channels import CHANNEL_PAIR_RATIO, COST_RATIO, MAX_LESS_WORK
from laggard.locate.medians import median_over_steps, middle
from laggard.locate.slow.steps import Steps, node_numbers
from laggard.locate.step_tables import over_phases
from laggard.model import MAX_NAMED_RANKS, Culprit

ALL_TO_ALL: Final = OPS.index("all_to_all")

MIN_MACHINES: Final = 4
"""The machines of an exchange: of three, a late one leaves two that wait, and these look like a way between them."""

MIN_EXCHANGES: Final = 50
"""The exchanges of each member: of fewer, it may have come last to none."""

LAST_SHARE: Final = 0.02
"""The part of its exchanges to which each member is taken to have come last."""

CONFIDENCE: Final = 0.5


class _Exchange(NamedTuple):
    """The members of a group, by their columns, and what exchanges of one size took each of them where it came last:
    at most, and at least, in seconds. `a_step`: how many there are in a step."""

    columns: Numbers
    most: Floats
    least: Floats
    a_step: float


class _Way(NamedTuple):
    """The numbers of two machines, what exchanges take the members there, and the others, in seconds a step, and the
    columns of both."""

    machines: frozenset[int]
    slow: float
    fast: float
    held_up: Numbers
    free: Numbers


def slow_exchanges(timings: JobTimings, ways_of_job: Ways, steps: Steps) -> tuple[Culprit, ...]:
    """The way that all exchanges over MIN_MACHINES machines show to be slow, if they agree on one."""
    if timings.collectives is None:
        return ()
    machine = node_numbers(timings.nodes)
    found = [_slow_way(each, machine) for each in _exchanges(timings.collectives, steps.numbers, machine)]
    ways = [each for each in found if each is not None]
    if not ways or len(ways) < len(found) or len({each.machines for each in ways}) > 1:
        return ()
    worst = max(ways, key=lambda each: each.slow - each.fast)
    longer = worst.slow - worst.fast
    if not _less_work(ways, steps) <= MAX_LESS_WORK * longer:
        return ()
    most = max(longer, _that_way(ways_of_job, machine, worst.machines) * longer / worst.slow)
    return (_culprit(timings, steps, machine, worst),) if most >= COST_RATIO * middle(steps.duration) else ()


def held_up_most(timings: JobTimings, steps: Steps, columns: frozenset[int]) -> int | None:
    """The one of some members, by `columns`, whom every exchange among them holds up CHANNEL_PAIR_RATIO times as long
    as any other, though it has no more work than they. None where there is none, or no exchange among them."""
    if timings.collectives is None:
        return None
    machine = node_numbers(timings.nodes)
    found = [
        _apart(each, steps)
        for each in _exchanges(timings.collectives, steps.numbers, machine)
        if columns <= set(each.columns.tolist())
    ]
    return found[0] if found and len(set(found)) == 1 and found[0] in columns else None


def _apart(exchange: _Exchange, steps: Steps) -> int | None:
    """The column of the member that is held up far longer than any other, and has not more to do."""
    own = median_over_steps(over_phases(steps.phases))[exchange.columns]
    longest = int(exchange.least.argmax())
    others = np.arange(len(exchange.columns)) != longest
    longer = float(exchange.least[longest] - exchange.most[others].max())
    if exchange.least[longest] < CHANNEL_PAIR_RATIO * exchange.most[others].max():
        return None
    more = float(own[longest] - np.median(own[others]))
    return int(exchange.columns[longest]) if more <= MAX_LESS_WORK * longer * exchange.a_step else None


def _that_way(ways: Ways, machine: NDArray[np.int64], between: frozenset[int]) -> float:
    """The seconds a step that transfers take which may go that way: those of all groups with members on both machines,
    of groups of one kind the slowest."""
    whole = 0.0
    for category in ways.categories:
        here = [between <= set(machine[list(ways.channels[number].columns)].tolist()) for number in category.channels]
        if any(here):
            whole += float(np.nan_to_num(median_over_steps(category.least[:, here])).max())
    return whole


def _less_work(ways: Sequence[_Way], steps: Steps) -> float:
    """The seconds a step by which those who are held up do less themselves: who has less to do waits for others."""
    own = median_over_steps(over_phases(steps.phases))
    held_up, free = (
        float(np.median(own[np.unique(np.concatenate(those))]))
        for those in ([way.held_up for way in ways], [way.free for way in ways])
    )
    return free - held_up


def _exchanges(collectives: Collectives, steps: Numbers, machine: NDArray[np.int64]) -> Iterator[_Exchange]:
    rows = np.flatnonzero((collectives.op == ALL_TO_ALL) & np.isfinite(collectives.end))
    rows = rows[np.isin(collectives.step[rows], steps)]
    order, first = grouped((collectives.group[rows], collectives.size[rows]))
    for those in np.split(rows[order], first[1:]):
        if not len(those):
            continue
        columns, member = np.unique(collectives.column[those], return_inverse=True)
        count = np.bincount(member)
        if len(set(machine[columns].tolist())) < MIN_MACHINES or count.min() < MIN_EXCHANGES:
            continue
        seconds = (collectives.end - collectives.start)[those], blocked_seconds(collectives)[those]
        most, least = (
            np.array([np.quantile(each[member == number], LAST_SHARE) for number in range(len(columns))])
            for each in seconds
        )
        yield _Exchange(columns.astype(np.int64), most, least, float(count.max()) / max(1, len(steps)))


def _slow_way(exchange: _Exchange, machine: NDArray[np.int64]) -> _Way | None:
    """The two machines whose members alone are held up."""
    fastest = float(np.sort(exchange.most)[len(exchange.most) // 3])
    held_up = exchange.least > CHANNEL_PAIR_RATIO * fastest
    free = exchange.most < CHANNEL_PAIR_RATIO * fastest
    on = machine[exchange.columns]
    slow = frozenset(on[held_up].tolist())
    if len(slow) != 2 or slow & set(on[~held_up].tolist()) or not (held_up | free).all():
        return None
    slow_seconds, fast_seconds = (
        exchange.a_step * float(np.median(exchange.least[those])) for those in (held_up, free)
    )
    return _Way(slow, slow_seconds, fast_seconds, exchange.columns[held_up], exchange.columns[free])


def _culprit(timings: JobTimings, steps: Steps, machine: NDArray[np.int64], way: _Way) -> Culprit:
    columns = np.flatnonzero(np.isin(machine, sorted(way.machines))).tolist()
    ranks = tuple(int(timings.ranks[column]) for column in columns)
    nodes = tuple(dict.fromkeys(filter(None, (timings.nodes[column] for column in columns))))
    victims = sorted({int(rank) for rank in timings.ranks} - set(ranks))
    return Culprit(
        kind="slow_link",
        ranks=ranks,
        link=({"node": nodes[0]}, {"node": nodes[-1]}) if len(nodes) == 2 else None,
        phase="collective",
        slowdown_ratio=round(way.slow / max(way.fast, 1e-9), 3),
        recoverable_ratio=None,  # what else goes that way takes longer as well, and nothing tells by how much
        since_step=int(steps.numbers[0]),
        confidence=CONFIDENCE,
        evidence=(
            f"exchanges (all_to_all) take {ranks_text(ranks)} {seconds_text(way.slow)} a step where they come last, and"
            f" all others {seconds_text(way.fast)}",
            f"the way between the machines of {ranks_text(ranks)}: their work is as that of others",
        ),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
        nodes=nodes,
    )
