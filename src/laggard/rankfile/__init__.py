"""The rank file: what a training process reports to the agent of its node. Standard library only.

One rank writes it through a memory map, and the agent reads it with pread. The layout is fixed (layout.py). The file is
allocated in full before the first record, so that a full tmpfs is an error at the start and never a SIGBUS during
training; after that the writer makes no system call. Either side survives the other's death. What the reader cannot
check (a torn cell, another version, a symlink) is an error and never data.
"""

from laggard.rankfile.layout import VERSION, BeatRecord, CollectiveInFlight, GroupState, Lane, RankCounters
from laggard.rankfile.reader import Collective, RankFileError, RankFileReader, Step

__all__ = [
    "VERSION",
    "BeatRecord",
    "Collective",
    "RankCounters",
    "GroupState",
    "CollectiveInFlight",
    "Lane",
    "RankFileError",
    "RankFileReader",
    "Step",
]
