"""The part of `laggard.ranks/1` that is from NCCL RAS: launch counts and peers of jobs that run without hooks.

NCCL counts, for each rank of a communicator, the collectives that were launched. Ranks that are like all others are
counted and not listed; listed are those of this node, those behind, and those with anything wrong.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from laggard.limits import MAX_TEXT, MAX_WORLD, Count, CountOrNone, Name, Peer, RankNumber, Seconds, Text, WorldSize

MAX_JOBS: Final = 64
MAX_COMMUNICATORS: Final = 1024
MAX_LISTED: Final = 4096
"""The most ranks that are listed of a job."""

STATES: Final = ("off", "no_job", "waiting", "hooked", "asked", "too_old", "failed")
"""The states, in this order: not asked because it is switched off; nobody listens; a job listens that may still be in
its initialisation; all ranks have rank files; the last answer was good; NCCL before 2.28.7; no good answer."""

Launches: TypeAlias = Annotated[dict[Text, Count], Meta(max_length=32)]
"""Collectives launched, by NCCL's name of the operation (AllReduce, ...), without zeros. Sends and receives are not
counted, nor what is launched inside a CUDA graph."""


class RasRank(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A rank of a communicator. `host` is the address of its RAS network, `gpu` CUDA's number of its device.

    `missing`: NCCL RAS had no answer from it; then `launches` is empty, and `unresponsive` and `dead` are its word.
    `unchanged_seconds`: the time between the first and the last of `readings` in which none of its counts, in any of
    its communicators, had changed (of a missing rank: in which it was missing). `process` is what the agent sees of a
    process of its own node: running, stopped, gone; empty where it sees nothing.
    """

    rank: RankNumber
    host: Text
    pid: CountOrNone
    gpu: Peer
    launches: Launches = {}
    unchanged_seconds: Seconds = 0.0
    readings: Count = 1
    async_error: Count = 0  # ncclResult_t
    missing: bool = False
    unresponsive: bool = False
    dead: bool = False
    process: Annotated[str, Meta(pattern="^(running|stopped|gone)?$")] = ""


class RasCommunicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """A communicator of `size` ranks, of which `answered` were read. `launches`: the counts of those that are the
    furthest, `at_front` of them. `unchanged_seconds`: for how long, over `readings`, no rank's counts of this
    communicator changed. `starting`, `ending`: some rank is still being initialised, or has begun to leave. `left_out`:
    how many ranks that should be listed are not."""

    id: Text
    size: WorldSize
    answered: Count
    launches: Launches
    at_front: Count
    unchanged_seconds: Seconds
    readings: Count
    ranks: Annotated[tuple[RasRank, ...], Meta(max_length=MAX_LISTED)]
    starting: bool = False
    ending: bool = False
    left_out: Annotated[int, Meta(ge=0, le=MAX_WORLD)] = 0


class RasJob(msgspec.Struct, frozen=True):
    """The content of one answer: all communicators of one job, each process of which is in touch with the others.

    `owner` is the uid that listens, according to the kernel. `local_hosts`: those of its hosts that are this node.
    """

    job_id: Name
    owner: Count
    nccl_version: Text
    age_seconds: Seconds
    local_hosts: Annotated[tuple[Text, ...], Meta(max_length=256)]
    communicators: Annotated[tuple[RasCommunicator, ...], Meta(max_length=MAX_COMMUNICATORS)]


class RasSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The knowledge of the agent from NCCL RAS. `state` is one of STATES and `reason` says more, for people."""

    state: Annotated[str, Meta(pattern=f"^({'|'.join(STATES)})$")]
    reason: Annotated[str, Meta(max_length=4 * MAX_TEXT)] = ""
    jobs: Annotated[tuple[RasJob, ...], Meta(max_length=MAX_JOBS)] = ()
