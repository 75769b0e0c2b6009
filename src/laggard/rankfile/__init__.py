"""The rank file: how a training process speaks to the agent of its node. Standard library only.

A memory-mapped file that one rank writes and the agent reads with pread. Its layout is fixed (layout.py), it is
allocated in full before the first record (a full tmpfs is an error at the start, never a SIGBUS in mid-training), the
writer makes no system call after that, and either side survives the other's death. What cannot be checked (a torn
cell, another version, a symlink) is an error to the reader, never data.
"""

from laggard.rankfile.layout import VERSION, Beat, Counters, GroupMark, InFlightMark, Lane
from laggard.rankfile.reader import Collective, RankFileError, RankFileReader, Step
from laggard.rankfile.writer import RankFileWriter

__all__ = [
    "VERSION",
    "Beat",
    "Collective",
    "Counters",
    "GroupMark",
    "InFlightMark",
    "Lane",
    "RankFileError",
    "RankFileReader",
    "RankFileWriter",
    "Step",
]
