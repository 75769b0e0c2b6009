"""Where the nodes of a ring meet, by flags, for `laggard ring` and the gate."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, NamedTuple

from laggard.kit.environment import ENV_RING_TOKEN, ENV_RING_TOKEN_FILE
from laggard.kit.errors import UsageError
from laggard.kit.flags import duration
from laggard.kit.secret_files import read_token_file, tokens_of

if TYPE_CHECKING:
    from laggard.rings.membership import Membership


class Meeting(NamedTuple):
    """What the flags say of where the nodes of a ring meet, and of how they know one another. None: nothing."""

    rendezvous: str | None
    nodes: int | None
    node_rank: int | None
    token_file: str | None
    join_seconds: float

    @property
    def is_told(self) -> bool:
        """Whether a flag says where, or which node this is; else a launcher's environment does."""
        return bool(self.rendezvous) or self.nodes is not None or self.node_rank is not None


def add_meeting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rendezvous",
        metavar="HOST:PORT[,HOST:PORT]",
        help="an address of node 0 that the others reach, and a free port there; the second, for a gang whose node 0 "
        "does not come: of node 1",
    )
    group.add_argument("--nodes", type=int, metavar="N", help="how many nodes there are")
    group.add_argument("--node-rank", type=int, metavar="I", help="which of them this one is, from 0 to N-1")
    group.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"nodes without the secret in FILE are refused (or in that of {ENV_RING_TOKEN_FILE}, or in "
        f"{ENV_RING_TOKEN} itself; default: none is needed)",
    )
    group.add_argument(
        "--join-seconds",
        type=duration(0.001, 86400),
        default=60.0,
        metavar="TIME",
        help="how long nodes are waited for (default: 60s)",
    )


def meeting_of(arguments: argparse.Namespace) -> Meeting:
    return Meeting(
        arguments.rendezvous, arguments.nodes, arguments.node_rank, arguments.token_file, arguments.join_seconds
    )


def find_place(meeting: Meeting) -> Membership | None:
    """Returns this process's place by the flags, else by the environment of torchrun or SLURM; None where neither
    tells. Raises UsageError."""
    from laggard.rings import membership  # the gate starts sooner without

    if meeting.rendezvous:
        return membership.from_flags(meeting.rendezvous, meeting.nodes, meeting.node_rank)
    if meeting.is_told:
        raise UsageError("--nodes and --node-rank need --rendezvous HOST:PORT, where node 0 listens")
    return membership.from_environment(os.environ)


def read_tokens(path: str | None) -> tuple[str, ...]:
    """Returns the ring's tokens, of which the first is sent: those of the file, else of the file that the environment
    names, else of the environment; none: no node needs one. Raises UsageError."""
    if path is not None:
        return read_token_file(path, "--token-file")
    if named := os.environ.get(ENV_RING_TOKEN_FILE):
        return read_token_file(named, ENV_RING_TOKEN_FILE)
    try:
        return tokens_of(os.environ.get(ENV_RING_TOKEN, ""))
    except ValueError as error:
        raise UsageError(f"{ENV_RING_TOKEN} {error}") from None
