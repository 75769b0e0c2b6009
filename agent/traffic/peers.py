"""The addresses of a job's other nodes, by what its launcher told the ranks: SLURM's list of nodes, and MASTER_ADDR.
With torchrun the first node also sees who is connected to its store."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from laggard.agent.sock_diag.inet_diag import TcpSocket, plain_address
from laggard.rings.membership import expand_hosts

VARIABLES: Final = frozenset({"SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "MASTER_ADDR", "MASTER_PORT"})
_MAX_NAMES: Final = 1024

RESOLVE_SECONDS: Final = 5.0
"""The time for resolving the names of one user's jobs, in one look."""


def named_hosts(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the job's nodes that a rank's environment holds, this node's among them. Pure."""
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    master = variables.get("MASTER_ADDR", "")
    return tuple(dict.fromkeys((*expand_hosts(nodes)[:_MAX_NAMES], *((master,) if master else ()))))


def addresses_of(
    names: Iterable[str],
    resolve: Callable[[str], Iterable[str]] | None = None,
    seconds: float = RESOLVE_SECONDS,
) -> frozenset[str]:
    """Returns the addresses of the names, as the name service tells them; a name that it does not know has none. A user
    may name a thousand names whose server never answers: after `seconds` no other name is asked for."""
    resolve = resolve or _resolve
    deadline = time.monotonic() + seconds
    in_time = itertools.takewhile(lambda _: time.monotonic() < deadline, names)
    return frozenset(plain_address(address) for name in in_time for address in resolve(name)) - {""}


def clients_of_store(sockets: Iterable[TcpSocket], variables: Mapping[str, str]) -> frozenset[str]:
    """Returns who is connected to the port of torchrun's store on this machine: the job's nodes. Pure."""
    port = variables.get("MASTER_PORT", "")
    number = int(port) if port.isdecimal() and len(port) < 6 else 0
    return frozenset(each.remote for each in sockets if number and each.local_port == number)


def _resolve(name: str) -> list[str]:
    with contextlib.suppress(OSError, UnicodeError):
        return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []
