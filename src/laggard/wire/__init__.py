"""The JSON documents that laggard's parts exchange: `codec` reads and writes them, `ranks` and `nodes` are
their types."""

from laggard.wire.codec import WireError, decode, encode
from laggard.wire.nodes import DrainsDocument, NodeRow, NodesDocument
from laggard.wire.ranks import (
    Beat,
    CollectiveTotal,
    GroupProgress,
    Ignored,
    InFlight,
    LaneProgress,
    RankRow,
    RanksDocument,
    StepRow,
)

__all__ = [
    "Beat",
    "CollectiveTotal",
    "DrainsDocument",
    "GroupProgress",
    "Ignored",
    "InFlight",
    "LaneProgress",
    "NodeRow",
    "NodesDocument",
    "RankRow",
    "RanksDocument",
    "StepRow",
    "WireError",
    "decode",
    "encode",
]
