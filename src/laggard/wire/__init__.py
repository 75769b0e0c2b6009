"""The JSON documents that laggard's parts exchange. `codec` encodes and decodes them; `ranks` and `nodes` define their
types."""

from laggard.wire.codec import WireError, decode, encode
from laggard.wire.nodes import DrainsDocument, NodeRow, NodesDocument
from laggard.wire.ranks import (
    RANKS_SCHEMA,
    BeatRow,
    CollectiveTotal,
    GroupProgress,
    InFlight,
    LaneProgress,
    RankRow,
    RanksDocument,
    RejectedFiles,
    StepRow,
)

__all__ = [
    "RANKS_SCHEMA",
    "BeatRow",
    "CollectiveTotal",
    "DrainsDocument",
    "GroupProgress",
    "InFlight",
    "LaneProgress",
    "NodeRow",
    "NodesDocument",
    "RankRow",
    "RanksDocument",
    "RejectedFiles",
    "StepRow",
    "WireError",
    "decode",
    "encode",
]
