"""Takes the collector's connections from the kernel, first those of addresses that connected the least of late. A
handshake of TLS comes after the place.

What a connection costs until it has a place is some hundred times what it costs a client to open one. asyncio takes
connections in the order in which they came. Whoever opens more than it takes, and opens each again that was closed,
fills the kernel's queue: the kernel then drops the first packets of all others, and a gate gives up before it sends
them again. So here the queue is emptied at each turn of the event loop, which costs little, and few of a turn get
further.
"""

from __future__ import annotations

import asyncio
import bisect
import errno
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.collector.web.connections import HEAD_SECONDS, BoundedProtocol
from laggard.kit.shares import OWN_MACHINE, Shares, client_of, is_of_own_machine
from laggard.kit.tls_server import ServerTls, log_failure

MAX_PENDING: Final = 512
"""The most connections that wait here. Beyond them the one is closed whose address connected the most of late."""

MAX_OF_OWN_MACHINE: Final = 64
"""The most connections of this machine's own users, of late, that come before those of others, as a proxy's do: some
nine a second. One user may have each from another address of the loopback interface."""

FEW_OF_ADDRESS: Final = 16.0
"""The connections of one address, of late, that count as none where this machine's users crowd: some two a second."""

MAX_UNACCEPTED: Final = 1024
"""Connections that the kernel holds until they are accepted. Beyond them it drops the first packet of a connection, and
its client tries again a second later."""

_HANDED_ON_AT_ONCE: Final = 16
"""The most that get further in one turn of the event loop, which has other things to do as well."""

_TAKE_SECONDS: Final = 0.02
"""The time for which connections are taken in one turn."""

_BURST_SECONDS: Final = 0.1
"""The time for which more may come than wait here: until then they stay with the kernel, and none is closed."""

_PAUSE_SECONDS: Final = 0.1
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


class _Pending(NamedTuple):
    """`of_crowd`: of this machine, whose users connect more often than MAX_OF_OWN_MACHINE; `taken`: how often its
    address had connected before, of a crowd as none where that were few; `number`: the order of arrival."""

    of_crowd: bool
    taken: float
    number: int
    address: str
    client: socket.socket


class Acceptor:
    """`make_protocol` makes the protocol of a connection; at most `max_pending` wait here; `note_refused` is
    told how many were closed, and the address of one of them."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        note_refused: Callable[[int, str], None],
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._note_refused = note_refused
        self._max_pending = max_pending
        self._loop = asyncio.get_running_loop()
        self._shares = Shares()
        self._numbers = itertools.count()
        self._pending: list[_Pending] = []  # in the order in which they are handed on
        self._hands_on = False
        self._full_since: float | None = None  # in monotonic seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(MAX_UNACCEPTED)
        self._loop.add_reader(self._listener.fileno(), self._take_all)

    def stop(self) -> None:
        """Takes no more, and closes those that wait. The listener stays open."""
        self._loop.remove_reader(self._listener.fileno())
        for each in self._pending:
            each.client.close()
        self._pending.clear()

    def _take_all(self) -> None:
        began = time.monotonic()
        refused, address = 0, ""
        while time.monotonic() < began + _TAKE_SECONDS:
            if len(self._pending) >= self._max_pending and not self._is_flooded(began):
                break
            try:
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                self._full_since = None  # all are here
                break
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause()
                    break
                continue  # of a client that has left already
            self._keep(client, str(peer[0]))
            if len(self._pending) > self._max_pending:
                last = self._pending.pop()
                last.client.close()
                refused, address = refused + 1, last.address
        if refused:
            self._note_refused(refused, address)  # once in a turn: to write a line costs more than all the rest
        self._hand_on_soon()

    def _is_flooded(self, now: float) -> bool:
        """Whether more came than wait here for longer than a burst lasts, as of a thousand gates at once."""
        self._full_since = now if self._full_since is None else self._full_since
        return now - self._full_since > _BURST_SECONDS

    def _keep(self, client: socket.socket, address: str) -> None:
        now, of_crowd = time.monotonic(), False
        if is_of_own_machine(client, address):
            of_crowd = self._shares.add(OWN_MACHINE, 1.0, now) > MAX_OF_OWN_MACHINE
        taken = self._shares.add(client_of(address), 1.0, now)
        if of_crowd and taken < FEW_OF_ADDRESS:  # else a fresh address each time would come before all of them
            taken = 0.0
        bisect.insort(self._pending, _Pending(of_crowd, taken, next(self._numbers), address, client))

    def _hand_on_soon(self) -> None:
        if self._pending and not self._hands_on:
            self._hands_on = True
            self._loop.call_soon(self._hand_on)

    def _hand_on(self) -> None:
        self._hands_on = False
        for each in self._pending[:_HANDED_ON_AT_ONCE]:
            task = self._loop.create_task(self._connect(each.client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        del self._pending[:_HANDED_ON_AT_ONCE]
        self._hand_on_soon()

    async def _connect(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, client)
        except OSError:
            client.close()

    def _pause(self) -> None:
        """No more can be taken for a moment: the listener would stay readable all the time."""
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._take_all)


# TLS in front of the collector's connections.
#
# asyncio makes a protocol only when a handshake has ended: connections that never end theirs would be in no table. Here
# a connection has its place and its deadline from its begin, and the handshake comes after that.

log = logging.getLogger("laggard.collector")


def after_handshake(make: type[BoundedProtocol], tls: ServerTls) -> Callable[..., asyncio.Protocol]:
    """Returns a function that makes a protocol which does the handshake, and then is what `make` makes."""
    return lambda **named: _Handshake(make(**named), tls)


class _Handshake(asyncio.Protocol):
    """One connection until its handshake is done. `inner` has the place in the table, and takes over."""

    def __init__(self, inner: BoundedProtocol, tls: ServerTls) -> None:
        self._inner = inner
        self._tls = tls
        self._early = bytearray()  # came between the end of the handshake and the change of protocol
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._inner.admit(transport, lambda: self._begin(transport))

    def _begin(self, transport: asyncio.Transport) -> None:
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.leave()

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                plain, self, self._tls.context, server_side=True, ssl_handshake_timeout=HEAD_SECONDS
            )
        except OSError as error:  # a wrong certificate, or a client that left
            if isinstance(error, ssl.SSLError):
                log_failure(error)
            # The frames of its traceback hold the handshake's buffers, and what waits for it holds the error: a circle
            # that would stay until Python happens to look for circles.
            error.__traceback__ = error.__context__ = None
            plain.abort()
            self._inner.leave()
            return
        if secure is None or secure.is_closing():
            self._inner.leave()
            return
        self._hand_over(secure)

    def _hand_over(self, secure: asyncio.Transport) -> None:
        if not self._tls.names_are_allowed(secure.get_extra_info("peercert")):
            log.warning("a client was refused: its certificate has none of client_allowed_sans")
            secure.abort()
            self._inner.leave()
            return
        secure.set_protocol(self._inner)
        self._inner.connection_made(secure)
        if self._early:
            self._inner.data_received(bytes(self._early))
