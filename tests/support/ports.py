"""TCP ports for servers that a test starts: free, and nobody else's until the server listens."""

import fcntl
import os
import socket
from pathlib import Path

LOWEST = 10000  # above those on which services usually listen
COUNT = 10000  # up to 20000: the demo takes its own from there on. Linux gives connections those from 32768 on
LAST = Path(f"/tmp/laggard-tests-port-{os.getuid()}")  # wherever TMPDIR is: there is one count on a machine


def free_port() -> int:
    """A port that is free on every address. Ports that the kernel gives to connections are none of these, since a
    connection could take such a port before the server listens. All processes that run tests share one count, so that
    a port is handed out again only after all others."""
    with open(LAST, "a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        number = int(last.read() or 0)
        for _ in range(COUNT):
            number = (number + 1) % COUNT
            if _is_free(LOWEST + number):
                last.truncate(0)
                last.write(str(number))
                return LOWEST + number
    raise OSError(f"no port from {LOWEST} to {LOWEST + COUNT - 1} is free")


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    return [free_port() for _ in range(count)]


def _is_free(port: int) -> bool:
    """Nobody else listens there: it is taken on all addresses of both families, and not listened on."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
        if socket.has_dualstack_ipv6():
            with socket.socket(socket.AF_INET6) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("::", port))
    except OSError:
        return False
    return True
