"""The collectives of a recorded job as arrays: who was in which, when it began there and when it was over. Pure."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class ProcessGroup(NamedTuple):
    """A process group. `ranks` are its members as declared; empty where they were not."""

    name: str
    role: str
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Collectives:
    """C records of collectives, sends and receives, each by one rank. Times in seconds on that rank's own clock."""

    column: NDArray[np.int32]  # [C]: the rank's column in JobTimings
    step: Numbers  # [C]: -1 where unknown
    group: NDArray[np.int32]  # [C]: its place in `groups`
    op: NDArray[np.int8]  # [C]: its place in constants.OPS, -1 where unknown
    seq: Numbers  # [C]: -1 where unknown
    size: Numbers  # [C]: bytes, -1 where unknown
    peer: NDArray[np.int32]  # [C]: of sends and receives, the other side's rank number; -1
    start: Times  # [C]
    end: Times  # [C]: nan where it never finished
    waited: Times  # [C]: how long the caller was blocked until the end; nan: from the start on
    groups: tuple[ProcessGroup, ...]
    numbered_by_group: bool = False
    """True: `seq` counts all collectives of a group, as torch does; False: those of a group and operation."""
    begun: NDArray[np.bool_] | None = None
    """[C]: whether the device is known to have begun it; where it did on no rank, nothing is known of that."""
