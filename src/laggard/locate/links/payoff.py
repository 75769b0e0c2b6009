"""The gain of a job if its slow channels were as fast as equal ones, by replaying its last steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.links.pairs import SEND
from laggard.locate.slow.replay import TOLERANCE, Replay
from laggard.locate.slow.steps import Steps


def link_payoff(
    timings: JobTimings, steps: Steps, channels: Sequence[Channel], shares: Mapping[int, float], since: int
) -> float | None:
    """The share of the step time that is saved where transfers through channels (by their number) take such shares
    of their time alone; None where what was recorded cannot be replayed."""
    replay = Replay.of(timings, steps, since)
    if replay is None or timings.collectives is None:
        return None
    now, recorded = replay.seconds(()), replay.recorded_seconds(steps)
    if not abs(now - recorded) <= TOLERANCE * recorded:
        return None
    fixed = replay.with_transfers(_shares(timings, timings.collectives, channels, shares, replay.rows)).seconds(())
    return float(np.clip((now - fixed) / max(now, recorded), 0.0, 1.0))


def _shares(
    timings: JobTimings,
    collectives: Collectives,
    channels: Sequence[Channel],
    shares: Mapping[int, float],
    rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """[M]: of the meetings of which `rows` [M] are records, the share of its time that each takes then."""
    groups = {channels[number].group: share for number, share in shares.items() if channels[number].group}
    pairs = {channels[number].columns: share for number, share in shares.items() if not channels[number].group}
    found = np.array([groups.get(group.name, 1.0) for group in collectives.groups])[collectives.group[rows]]
    column, peer = collectives.column[rows], np.searchsorted(timings.ranks, collectives.peer[rows])
    for place in np.flatnonzero(collectives.peer[rows] >= 0).tolist():
        ends = int(column[place]), int(peer[place])
        found[place] = pairs.get(ends if collectives.op[rows[place]] == SEND else ends[::-1], 1.0)
    return found
