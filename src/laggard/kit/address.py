"""Addresses of daemons and databases, with and without the login in them, and SLURM's lists of hosts."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from laggard.kit.errors import UsageError

if TYPE_CHECKING:
    import socket
    from ipaddress import IPv4Address, IPv6Address


def as_url(address: str, port: int) -> str:
    """`address` as a URL where it is written as HOST or HOST:PORT; `port`: for one that names none. What names its
    scheme stays as it is."""
    if not address or "://" in address:
        return address
    server, slash, path = address.partition("/")
    host = server.rpartition("@")[2]
    named = host.rpartition(":")[2].isdecimal() and not host.endswith("]") and (host.count(":") == 1 or "]:" in host)
    return f"http://{server}{'' if named else f':{port}'}{slash}{path}"


def without_login(url: str) -> str:
    """`url` for messages, logs and pages: less the user and the password before its host, and less its query and
    fragment, which may hold a token. It need not be an address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    host_and_path = rest.rpartition("@")[2]  # the last one: a password may have an @
    return scheme + separator + host_and_path.partition("?")[0].partition("#")[0]


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """The address that `text` is, without a zone, and an IPv4 address within IPv6 as that; None where it is none."""
    import ipaddress  # here: the gate, which has to start fast, needs none

    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found


LISTENING: Final = "0A"
_ESTABLISHED: Final = "01"
"""States of include/net/tcp_states.h, as /proc/net/tcp writes them."""


class TcpSocket(NamedTuple):
    """A socket of this network namespace. `local` and `remote` as the kernel writes them; `user`: who made it, a
    uid."""

    local: str
    remote: str
    state: str
    user: int


def tcp_sockets() -> Iterator[TcpSocket]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:  # a kernel without IPv6
            for each in map(str.split, file.read().splitlines()[1:]):
                yield TcpSocket(each[1], each[2], each[3], int(each[7]))


def user_of_client(connection: socket.socket) -> int | None:
    """The uid of who has connected, where that is a process of this machine that came over the loopback interface; None
    of all others, and where the kernel no longer knows."""
    try:
        ours, theirs = connection.getsockname(), connection.getpeername()
    except OSError:
        return None
    known = ip_of(str(theirs[0]))
    if known is None or not known.is_loopback:
        return None
    ends = [(_as_kernel(theirs, version), _as_kernel(ours, version)) for version in (4, 6)]
    users = {it.user for it in tcp_sockets() if it.state == _ESTABLISHED and (it.local, it.remote) in ends}
    return users.pop() if len(users) == 1 else None


def _as_kernel(end: Sequence[Any], version: int) -> str:
    """`0100007F:4BC8`: 32-bit words in the machine's order; an IPv4 address also as one of IPv6 that stands for it."""
    found, port = ip_of(str(end[0])), int(end[1])
    packed = found.packed if found else b""
    if version == 6 and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


# URLs of PostgreSQL in place of a file's path. Standard library only.

_SCHEMES: Final = ("postgresql://", "postgres://")
"""Those of libpq: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS"""

_SECRETS: Final = frozenset(("password", "sslpassword"))


def is_database_url(place: str) -> bool:
    return place.startswith(_SCHEMES)


def refusal(url: str) -> str:
    """The reason why it is not taken; empty where it is. A password in it would be read by everybody who reads the
    command line, the settings or a log."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is no URL: write postgresql://HOST/NAME"
    login = parts.netloc.rpartition("@")[0]
    if ":" in login or any(name.lower() in _SECRETS for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        return (
            "is given with a password: put that into a file of mode 0600 and name it, as passfile=FILE in the URL or "
            "as PGPASSFILE"
        )
    return ""


_MAX_HOSTS: Final = 1 << 16


def first_host(nodes: str) -> str:
    """Returns the first host of SLURM's list: `n1` of `n[1-4,7],gpu3`. Raises UsageError for a list of another form."""
    match = re.match(r"([\w.-]+)(?:\[(\w+)[^\]]*\]([\w.-]*))?(?:,|$)", nodes)
    if match is None:
        raise UsageError(f"SLURM_STEP_NODELIST is {nodes[:80]!r}; set MASTER_ADDR to the host of task 0")
    return match[1] + (match[2] or "") + (match[3] or "")


def expand_hosts(nodes: str) -> tuple[str, ...]:
    """Returns the hosts of SLURM's list in its order: n1, n2, n7 of `n[1-2,7]`; empty for a list of another form."""
    hosts: list[str] = []
    if not re.fullmatch(r"(?:[\w.,-]|\[[\w,-]+\])+", nodes):
        return ()
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes):
        parts = re.split(r"[\[\]]", word)
        choices = [_numbers(part) if at % 2 else [part] for at, part in enumerate(parts)]
        if math.prod(map(len, choices)) + len(hosts) > _MAX_HOSTS:
            return ()
        hosts += map("".join, itertools.product(*choices))
    return tuple(hosts)


def _numbers(text: str) -> list[str]:
    """Returns 07, 08, 12 of `07-08,12`."""
    numbers: list[str] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", word)
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        width = len(match[1]) if match else 0
        run = range(first, min(last, first + _MAX_HOSTS) + 1)
        numbers += [f"{number:0{width}}" for number in run] if match else [word]
    return numbers
