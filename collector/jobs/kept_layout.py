"""The layout of a job's ranks, kept from round to round: reading it from their facts takes longer than all else that is
read there."""

from __future__ import annotations

from collections.abc import Mapping

from laggard.locate.live_positions import LiveLayout
from laggard.rankfile.fact_names import GROUPS
from laggard.wire import encode
from laggard.wire.ranks import RankRow


class KeptLayout:
    """The layout of the ranks that were last asked about. Not thread-safe."""

    def __init__(self) -> None:
        self._told: Mapping[int, tuple[int, bytes]] | None = None
        self._layout: LiveLayout | None = None

    def of(self, rows: Mapping[int, RankRow]) -> LiveLayout:
        """The layout of the ranks with these rows: the one that is kept, where they tell what it was made of."""
        told = _told(rows)
        if self._layout is None or told is None or told != self._told:
            self._told, self._layout = told, LiveLayout(rows)
        return self._layout


def _told(rows: Mapping[int, RankRow]) -> dict[int, tuple[int, bytes]] | None:
    """All that LiveLayout reads of the rows; None where that cannot be told. As text, since to Python 1 and true are
    equal, and so are groups in another order."""
    try:
        return {rank: (row.world_size, encode(row.facts.get(GROUPS))) for rank, row in rows.items()}
    except RecursionError:  # facts may be nested as deeply as could just be read
        return None
