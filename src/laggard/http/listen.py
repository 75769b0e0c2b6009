"""Listening sockets. A daemon binds its socket before anything else runs, so that a busy port is a usage error."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Final

from laggard.errors import UsageError

BACKLOG: Final = 1024
"""Connections that the kernel holds until a daemon accepts them. Beyond them it drops the first packet of a connection,
and its client tries again a second later."""


def bind(address: str, setting: str = "--web.listen-address") -> socket.socket:
    """Returns a listening socket on `HOST:PORT`, `:PORT` (every interface) or `[IPV6]:PORT`; port 0 is any free one.
    Raises UsageError, whose text names `setting` as the place to choose another address."""
    host, port = split_address(address)
    try:
        listener = listen(host, port, BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:  # a label of a host name may be too long for IDNA
        raise UsageError(_message(address, error, setting)) from None
    # Accepted connections inherit the option (tcp(7)). asyncio leaves it off where a socket was made without naming
    # TCP, and then a response that is written in two parts waits 40 ms for the client's delayed acknowledgement of the
    # first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port; an empty host is every interface. Raises UsageError."""
    host, separator, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UsageError(f"cannot read listen address {address!r}: write an IPv6 address in brackets, [::1]:{port}")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"cannot read listen address {address!r}: write HOST:PORT, or :PORT for every interface")
    return host, int(port)


def url_of(listener: socket.socket, tls: object = None) -> str:
    """Returns the URL of the socket, with the real port where port 0 was asked for. `tls`: where given, it is https."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Returns one listening socket, so that there is one port: of IPv6 and IPv4 where the host is empty and the machine
    has both. `backlog`: how many connections may wait, else Python's own number. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is switched off on this machine, or the port is busy: IPv4 will tell
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def _message(address: str, error: Exception, setting: str) -> str:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"{address} is in use; stop what listens there or choose another with {setting}"
    reason = getattr(error, "strerror", None) or error
    return f"cannot listen on {address}: {reason}; choose another with {setting}"
