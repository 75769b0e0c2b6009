"""Matches sends with receives: whether the partner of a send or receive has come to it. Pure.

Both sides count what they send to and receive from each other, each direction by itself, whatever the process group:
the nth send of A to B is the nth receive of B from A. No partner is reported missing where the two counts cannot be of
the same messages: a rank was restarted, or hooked after its first messages, or receives from any rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from laggard.locate.hang.liveness import has_left, was_read_since
from laggard.locate.job_timings import RankState
from laggard.rankfile.layout import LANE_COUNT
from laggard.wire.ranks import InFlight

COUNTERPART = {"send": "recv", "recv": "send"}
"""The operation of the partner when a rank sends, and when it receives."""

ANY_RANK = -1
"""The peer of a receive from any rank, of a group that was made by hand, and where an agent reports
none."""


class _Count(NamedTuple):
    entered: int
    done: int


def partner_is_missing(flight: InFlight, rank: int, waiter: RankState, partner: RankState) -> bool | None:
    """Whether `partner`, the state of rank `flight.peer`, has not come to the send or receive `flight` that `waiter`,
    the state of rank `rank`, is in. None where that is not known."""
    op = COUNTERPART[flight.op]
    theirs = _count(partner, op, rank)
    if partner.beat is None or theirs is None:
        return None
    if theirs.entered >= flight.seq:
        return False
    if not (has_left(partner) or was_read_since(partner, partner.beat.age_seconds, flight.seconds)):
        return None
    if partner.beat.age_seconds > flight.seconds:  # from before the wait, and nothing has come since: it stands still
        return True
    ours = _count(waiter, flight.op, flight.peer)
    return True if ours and ours.done <= theirs.entered else None  # else more were done here than were begun there


def others_in_flight(flight: InFlight, waiter: RankState) -> Iterator[InFlight]:
    """The sends and receives beside `flight` that `waiter` has entered and that are not done. Those of a batch are
    waited for together, and `flight` is only the last of them; on a device it is the last that was launched."""
    for lane in waiter.beat.lanes if waiter.beat else ():
        known = lane.op in COUNTERPART and lane.peer != ANY_RANK
        if known and lane.entered > lane.done and (lane.op, lane.peer) != (flight.op, flight.peer):
            yield InFlight(lane.op, lane.group, lane.entered, flight.seconds, lane.peer)


def _count(state: RankState, op: str, peer: int) -> _Count | None:
    """The number of messages that a rank has sent to or received from `peer`. None where its counts cannot answer that:
    what it received from any rank may be from `peer`, and a rank file has no room for the lanes of very many peers."""
    reported = state.beat.lanes if state.beat else ()
    lanes = [lane for lane in reported if lane.op == op and lane.peer in (peer, ANY_RANK)]
    flight = state.in_flight if state.in_flight and state.in_flight.op == op else None
    if any(lane.peer == ANY_RANK for lane in lanes) or (flight and flight.peer == ANY_RANK):
        return None
    if len(lanes) > 1 or (not lanes and len(reported) >= LANE_COUNT):
        return None
    entered = max([flight.seq if flight and flight.peer == peer else 0, *(lane.entered for lane in lanes)])
    return _Count(entered, sum(lane.done for lane in lanes))
