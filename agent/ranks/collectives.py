"""The last collectives in a rank file, as rows of `laggard.collectives/1`."""

from __future__ import annotations

from typing import Final

from laggard.agent.ranks.row import RankSnapshot
from laggard.agent.ranks.validation import MAX_STEP_NS
from laggard.rankfile import Collective, RankFileError, RankFileReader
from laggard.wire.collectives import CollectiveLane, CollectiveRow, RankCollectives

MAX_ROWS: Final = 4096
"""The most rows of one rank, the newest: about 250 KB of JSON."""

_MAX_NUMBER: Final = 1 << 53


def read_collectives(snapshot: RankSnapshot) -> RankCollectives | None:
    """The newest MAX_ROWS collectives that a rank has finished in steps. None where the path is another rank's file by
    now, or no longer one."""
    row = snapshot.row
    expected = (row.owner, snapshot.started_ns, row.job_id, row.rank)
    try:
        with RankFileReader(snapshot.path) as file:
            identity = file.identity
            if (file.owner, identity["wall_ns"], identity["job_id"], identity["rank"]) != expected:
                return None
            lanes, records = file.lanes(), file.collectives()
    except RankFileError:
        return None
    rows = tuple(_row(each) for each in records if _is_valid(each, len(lanes)))[-MAX_ROWS:]
    return RankCollectives(row.rank, tuple(CollectiveLane(it.op, it.role, it.group, it.peer) for it in lanes), rows)


def _is_valid(it: Collective, lanes: int) -> bool:
    """Whether it is over, and no number of it is absurd: any user may have written the file."""
    return (
        0 <= it.step <= _MAX_NUMBER
        and 0 <= it.lane < lanes
        and it.sequence > 0
        and 0 < it.arrival <= it.end <= it.arrival + MAX_STEP_NS
        and 0 <= it.waited <= MAX_STEP_NS
        and 0 <= it.bytes <= _MAX_NUMBER
    )


def _row(it: Collective) -> CollectiveRow:
    return CollectiveRow(it.step, it.lane, it.sequence - 1, it.arrival / 1e9, it.end / 1e9, it.waited / 1e9, it.bytes)
