"""TLS: a daemon's certificates, read anew when their files change, and what its clients show and trust."""

from __future__ import annotations

import functools
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from laggard.errors import UsageError
from laggard.http.message import linger
from laggard.http.tls_connection import ReceivedTooMuch, TlsConnection
from laggard.secret_files import ReadAnew, warn_of_exposed

log = logging.getLogger("laggard.http")

ENV_CA_FILE: Final = "LAGGARD_TLS_CA_FILE"
ENV_CERT_FILE: Final = "LAGGARD_TLS_CERT_FILE"
ENV_KEY_FILE: Final = "LAGGARD_TLS_KEY_FILE"

ASKS_FOR_CERTIFICATE: Final = f"it asks for a client's certificate: set {ENV_CERT_FILE} and {ENV_KEY_FILE}"

CLOSED: Final = f"it closed the connection: {ASKS_FOR_CERTIFICATE}, or others"
"""An alert that says more may be lost with the connection, and asyncio sends none when it refuses a certificate."""

_SAN_KINDS: Final = ("DNS", "IP Address", "email", "URI")

VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


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
        self.context = _server_context(settings)
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


def client_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """The context of a client of agents and collectors. It trusts LAGGARD_TLS_CA_FILE, else the system's authorities;
    shows LAGGARD_TLS_CERT_FILE where a server asks. Made anew when a file changes; while the files cannot be used, as
    between a new key and its certificate, what they said last in this process holds, and the log says so. Raises
    UsageError that names the variable where they never could."""
    files = tuple(environ.get(name, "") for name in (ENV_CA_FILE, ENV_CERT_FILE, ENV_KEY_FILE))
    return _client_files(files).value()


def own_context(environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """The context for asking a daemon of this machine that is known by other means: its certificate, which may hold no
    name of the loopback interface, is not checked."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _show(context, environ.get(ENV_CERT_FILE, ""), environ.get(ENV_KEY_FILE, ""))
    return context


def log_failure(error: OSError) -> None:
    """Tells those who run a daemon why a client's handshake failed."""
    why = getattr(error, "reason", None) or str(error)
    log.warning("a client's TLS handshake failed: %s", why.replace("_", " ").lower())


def failure_text(error: ssl.SSLError) -> str:
    """The reason why a client has no TLS connection, for those who run it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLEOFError):
        return CLOSED
    if "CERTIFICATE_REQUIRED" in reason:
        return ASKS_FOR_CERTIFICATE
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS: write http://"
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"it does not accept this client's certificate or TLS version: {alert}"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def tls_failure(error: BaseException | None) -> str:
    """The failure of TLS, of which httpx's own errors say little; empty where nothing did."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return failure_text(error)
        error = error.__cause__ or error.__context__
    return ""


@functools.lru_cache(maxsize=4)
def _client_files(files: tuple[str, ...]) -> ReadAnew[ssl.SSLContext]:
    told = f"what clients show and trust is read anew from {', '.join(filter(None, files))}"
    return ReadAnew(tuple(filter(None, files)), lambda: _client_context(*files), "certificates stay", lambda _: told)


def _client_context(authorities: str, certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authorities or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ENV_CA_FILE}: {_why(authorities, error)}") from None
    _show(context, certificate, key)
    if certificate:
        warn_of_exposed(key or certificate, ENV_KEY_FILE if key else ENV_CERT_FILE)
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    if not certificate:
        return
    try:
        context.load_cert_chain(certificate, key or None, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ENV_CERT_FILE}, {ENV_KEY_FILE}: {_why(certificate, error)}") from None


def _server_context(settings: ServerTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = settings.min_version, settings.max_version
    context.options |= ssl.OP_NO_RENEGOTIATION
    warn_of_exposed(settings.key_file, "key_file")
    try:
        context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cert_file, key_file: {_why(settings.cert_file, error)}") from None
    if settings.client_ca_file:
        try:
            context.load_verify_locations(cafile=settings.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"client_ca_file: {_why(settings.client_ca_file, error)}") from None
    context.verify_mode = settings.client_auth
    return context


def _no_password() -> str:
    """Called for an encrypted key, for which ssl would ask on the terminal."""
    return ""


def _why(path: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no PEM file").replace("_", " ").lower()
        return f"{path} cannot be used: {reason}"
    return f"cannot read {error.filename or path}: {(error.strerror or str(error)).lower()}"
