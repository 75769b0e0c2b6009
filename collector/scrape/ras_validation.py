"""Validates the part of an agent's ranks document that is from NCCL RAS, whose words come from users' processes."""

from __future__ import annotations

from laggard.wire.codec import require
from laggard.wire.ras import MAX_LISTED, RasCommunicator, RasSource


def check_ras(source: RasSource) -> None:
    """What no type says. Raises WireError."""
    for job in source.jobs:
        require(sum(len(it.ranks) for it in job.communicators) <= MAX_LISTED, f"ras: more than {MAX_LISTED} ranks")
        for communicator in job.communicators:
            _check_communicator(communicator)


def _check_communicator(it: RasCommunicator) -> None:
    require(it.at_front <= it.answered <= it.size, "ras: more ranks than the communicator has")
    ranks = {rank.rank for rank in it.ranks}
    require(len(ranks) == len(it.ranks), "ras: a rank stands twice in a communicator")
    require(all(rank < it.size for rank in ranks), "ras: a rank is none of its communicator")
