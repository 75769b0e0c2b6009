"""The TCP connections of processes on this machine, as the kernel tells them: sock_diag for what they carried,
/proc/PID/fd, or laggard's reader, for whose they are."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from laggard.agent.sock_diag import TcpSocket, established_sockets, plain_address
from laggard.kit.address import expand_hosts
from laggard.probes.host.apart import HANGING, NoChild, Stopped, apart
from laggard.probes.host.reader import with_reader

T = TypeVar("T")

_MAX_FILES: Final = 1 << 14
_HANGS: Final = "its user's processes do not let themselves be read"
_LINK: Final = re.compile(r"socket:\[(\d{1,12})\]")


class SocketsUnknown(Exception):
    """The kernel does not tell. The text says what it refused."""


def tcp_sockets() -> dict[int, TcpSocket]:
    """Returns the established connections of this network namespace by inode. Raises SocketsUnknown."""
    try:
        return {each.inode: each for each in established_sockets()}
    except OSError as error:
        raise SocketsUnknown(f"the kernel does not tell of TCP connections: {error.strerror or error}") from None


class ProcessSockets(NamedTuple):
    """`network`: the inode of the process's network namespace; `inodes`: of the sockets that it holds open."""

    network: int
    inodes: tuple[int, ...]


def socket_inodes(pid: int, proc: str = "/proc") -> frozenset[int]:
    """Returns the inodes of the sockets that a process holds open. Raises SocketsUnknown where neither this user nor
    laggard's reader may see them, or they are in another network namespace."""
    try:
        found = _or_by_reader(lambda: process_sockets(pid, proc), f"sockets {pid}", ProcessSockets)
        here = os.stat(f"{proc}/self/ns/net").st_ino
    except (FileNotFoundError, ProcessLookupError):
        return frozenset()  # it ended
    except OSError as error:
        raise SocketsUnknown(f"the ranks' connections may not be seen: {error.strerror}") from None
    if found.network != here:
        raise SocketsUnknown("the ranks have a network namespace of their own")
    return frozenset(found.inodes)


def process_sockets(pid: int, proc: str = "/proc") -> ProcessSockets:
    """The sockets of the process, as far as this one may see them. Raises OSError."""
    network = os.stat(f"{proc}/{pid}/ns/net").st_ino
    inodes = set()
    for name in os.listdir(f"{proc}/{pid}/fd")[:_MAX_FILES]:
        with contextlib.suppress(OSError):
            link = _LINK.fullmatch(os.readlink(f"{proc}/{pid}/fd/{name}"))
            if link:
                inodes.add(int(link[1]))
    return ProcessSockets(network, tuple(sorted(inodes)))


def read_variables(pids: Iterable[int], names: frozenset[str], proc: str = "/proc") -> Mapping[str, str]:
    """Returns the variables `names` of the first of `pids` that may be read, and nothing else of its environment."""
    for pid in pids:
        with contextlib.suppress(OSError):
            question = f"job_variables {pid}"
            found = _or_by_reader(partial(process_variables, pid, names, proc), question, dict[str, str])
            return {name: value for name, value in found.items() if name in names}
    return {}


def process_variables(pid: int, names: frozenset[str], proc: str = "/proc") -> dict[str, str]:
    """Those of `names` that the process was started with. Raises OSError, also where it makes its reader wait."""
    if not HANGING.without([str(pid)])[0]:
        raise OSError(errno.EBUSY, _HANGS)
    try:
        data = apart(lambda note: msgspec.json.encode(_own_variables(pid, names, proc, note)))
    except Stopped:
        HANGING.blame(pid)
        raise OSError(errno.EBUSY, _HANGS) from None
    except NoChild as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    number, text, found = msgspec.json.decode(data, type=tuple[int, str, dict[str, str]])
    if number:
        raise OSError(number, text)
    return found


def _own_variables(
    pid: int, names: frozenset[str], proc: str, note: Callable[[int], None]
) -> tuple[int, str, dict[str, str]]:
    """The variables, or an error number and its text."""
    note(pid)
    try:
        return 0, "", _read_variables(pid, names, proc)
    except OSError as error:
        return error.errno or errno.EIO, error.strerror or "", {}


def _read_variables(pid: int, names: frozenset[str], proc: str) -> dict[str, str]:
    with open(f"{proc}/{pid}/environ", "rb") as file:
        words = file.read(1 << 20).decode(errors="replace").split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words) if name in names}


def _or_by_reader(read: Callable[[], T], question: str, kind: type[T]) -> T:
    """Returns what `read` returns; where that is not permitted, what laggard's reader answers. Raises OSError."""
    try:
        return read()
    except PermissionError as error:
        answer = with_reader(error, question)
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError:
        raise OSError(errno.EPROTO, "laggard's reader answers something else") from None


# The addresses of a job's other nodes, by what its launcher told the ranks: SLURM's list of nodes, and MASTER_ADDR.
# With torchrun the first node also sees who is connected to its store.

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
