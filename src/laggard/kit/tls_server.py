"""TLS of a daemon: its certificates, read anew when their files change, and its connections."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from laggard.kit.errors import UsageError
from laggard.kit.http_message import linger
from laggard.kit.secret_files import ReadAnew, warn_of_exposed
from laggard.kit.tls import no_password, why_unusable

log = logging.getLogger("laggard.http")

_SAN_KINDS: Final = ("DNS", "IP Address", "email", "URI")

VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


# A server's side of one TLS connection, as a socket that HTTP is spoken over.
#
# ssl's own socket asks the kernel twice for each record, and OpenSSL takes 128 KiB of a hello. A client that sends it
# in records of one byte has a server make 40,000 system calls so, forty times what another handshake costs. Here what a
# client sends is taken in large pieces, and so much of it alone as a client needs for a handshake and a request.

MAX_RECEIVED_BYTES: Final = 64 << 10
"""The most that a client sends: its hello, some ten kilobytes of certificates, and the head of a request, which has
http_message.MAX_HEAD_BYTES at most; as records, so that it may be more than that by a half."""

_READ_BYTES: Final = 16 << 10
_WRITE_BYTES: Final = 256 << 10
"""The largest part of a response that is held encrypted."""

_Result = TypeVar("_Result")


class ReceivedTooMuch(ConnectionAbortedError):
    """The client has sent more than MAX_RECEIVED_BYTES."""


class TlsConnection:
    """Takes over `plain`, and begins nothing: do_handshake() comes first. Timeouts are those of whole calls. Methods
    raise OSError, of which ssl.SSLError is one; none of them may be called at the same time as another."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._left = MAX_RECEIVED_BYTES
        self._seconds: float | None = None
        self._is_plain = False

    @property
    def context(self) -> ssl.SSLContext:
        """The context that the handshake was made with."""
        return self._tls.context

    def receive_more(self) -> None:
        """Lets the client send as much as it may for another request."""
        self._left = MAX_RECEIVED_BYTES

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def do_handshake(self) -> None:
        self._exchange(self._tls.do_handshake)

    def getpeercert(self) -> dict[str, Any] | None:
        return self._tls.getpeercert()

    def recv(self, size: int) -> bytes:
        """Returns what is there, of as many records as it has; nothing where the client has ended."""
        if self._is_plain:
            self._plain.settimeout(self._seconds)
            return self._plain.recv(size)
        try:
            data = bytearray(self._exchange(lambda: self._tls.read(size)))
            with contextlib.suppress(ssl.SSLError):  # of what comes then, the next call tells
                while data and len(data) < size and (more := self._tls.read(size - len(data))):
                    data += more
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return bytes(data)

    def sendall(self, data: bytes) -> None:
        deadline = self._deadline()
        with memoryview(data) as view:
            for start in range(0, len(view), _WRITE_BYTES):
                self._tls.write(view[start : start + _WRITE_BYTES])
                self._flush(deadline)

    def unwrap(self) -> None:
        """Says that this was all, and waits for the client to say so."""
        self._exchange(self._tls.unwrap)

    def shutdown(self, how: int) -> None:
        """From here on what the client sends is not decrypted."""
        self._is_plain = True
        self._plain.shutdown(how)

    def _exchange(self, step: Callable[[], _Result]) -> _Result:
        """Takes `step` as often as it has to have more of the client."""
        deadline = self._deadline()
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._fill(deadline)
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush(deadline)  # the alert
                raise
            else:
                self._flush(deadline)
                return result

    def _fill(self, deadline: float | None) -> None:
        if self._left <= 0:
            raise ReceivedTooMuch(f"it sent more than {MAX_RECEIVED_BYTES} bytes")
        self._plain.settimeout(_remaining(deadline))
        data = self._plain.recv(min(_READ_BYTES, self._left))
        self._left -= len(data)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self, deadline: float | None) -> None:
        if self._outgoing.pending:
            self._plain.settimeout(_remaining(deadline))
            self._plain.sendall(self._outgoing.read())

    def _deadline(self) -> float | None:
        return None if self._seconds is None else time.monotonic() + self._seconds


def _remaining(deadline: float | None) -> float | None:
    """Raises TimeoutError."""
    if deadline is None:
        return None
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


class ServerTlsSettings(NamedTuple):
    """The certificate that a daemon shows its clients, and the one that it asks of them. `client_auth` is one of ssl's
    verify modes; `allowed_sans`, where it is not empty: a client's certificate must have one of these names."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    allowed_sans: tuple[str, ...] = ()
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.cert_file, self.key_file, self.client_ca_file)))


class ServerTls:
    """A daemon's side. Files that have changed are read at the next handshake; while they cannot be read, what they
    said last holds, and the log says so."""

    def __init__(self, settings: ServerTlsSettings) -> None:
        """Raises UsageError where a file cannot be read or is none of its kind."""
        self._settings = settings
        self._newest = ReadAnew(
            settings.files,
            lambda: _server_context(settings),
            "certificates stay",
            lambda _: f"certificates are read anew from {settings.cert_file}",
        )
        self.context = self._newest.value()
        self.context.sni_callback = self._choose

    def shake_hands(self, plain: socket.socket, seconds: float) -> TlsConnection:
        """Shakes hands within `seconds`. Raises OSError."""
        connection = TlsConnection(plain, self.context)
        connection.settimeout(seconds)
        try:
            connection.do_handshake()
        except (ssl.SSLError, ReceivedTooMuch) as error:
            log_failure(error)
            linger(connection)  # else what the client has sent resets the connection, and the alert is lost
            raise
        return connection

    def allows(self, connection: TlsConnection) -> bool:
        return self.names_are_allowed(connection.getpeercert())

    def is_current(self, connection: TlsConnection) -> bool:
        """Whether a handshake would be made by the same files still."""
        return connection.context is self._newest.value()

    @property
    def verifies_clients(self) -> bool:
        """Whether a certificate that a client shows is checked against client_ca_file."""
        return self._settings.client_auth != ssl.CERT_NONE

    @property
    def answers_probes(self) -> bool:
        """Whether clients that may ask nothing else are told if the daemon is healthy and ready: where the settings do
        not demand a certificate, since the kubelet's probes show none."""
        return self._settings.client_auth == ssl.CERT_OPTIONAL

    def names_are_allowed(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client may ask. `certificate`: what ssl says of the client's, verified; None or empty: it has
        none."""
        allowed = self._settings.allowed_sans
        if not allowed:
            return True
        names = ((certificate or {}).get("subjectAltName")) or ()
        return any(kind in _SAN_KINDS and name in allowed for kind, name in names)

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """Called by ssl at each handshake, also where the client sends no name."""
        connection.context = self._newest.value()


def log_failure(error: OSError) -> None:
    """Tells those who run a daemon why a client's handshake failed."""
    why = getattr(error, "reason", None) or str(error)
    log.warning("a client's TLS handshake failed: %s", why.replace("_", " ").lower())


def _server_context(settings: ServerTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = settings.min_version, settings.max_version
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, password=no_password)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cert_file, key_file: {why_unusable(settings.cert_file, error)}") from None
    if settings.client_ca_file:
        try:
            context.load_verify_locations(cafile=settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"client_ca_file: {why_unusable(settings.client_ca_file, error)}") from None
    context.verify_mode = settings.client_auth
    warn_of_exposed(settings.key_file, "key_file")
    return context
