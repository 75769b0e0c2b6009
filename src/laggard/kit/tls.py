"""TLS of those who ask: what they show and trust, read anew when its files change, and why it failed."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from typing import Final

from laggard.kit.errors import UsageError
from laggard.kit.secret_files import ReadAnew, warn_of_exposed

ENV_CA_FILE: Final = "LAGGARD_TLS_CA_FILE"
ENV_CERT_FILE: Final = "LAGGARD_TLS_CERT_FILE"
ENV_KEY_FILE: Final = "LAGGARD_TLS_KEY_FILE"

ASKS_FOR_CERTIFICATE: Final = f"it asks for a client's certificate: set {ENV_CERT_FILE} and {ENV_KEY_FILE}"

CLOSED: Final = f"it closed the connection: {ASKS_FOR_CERTIFICATE}, or others"
"""An alert that says more may be lost with the connection, and asyncio sends none when it refuses a certificate."""


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
        raise UsageError(f"{ENV_CA_FILE}: {why_unusable(authorities, error)}") from None
    _show(context, certificate, key)
    if certificate:
        warn_of_exposed(key or certificate, ENV_KEY_FILE if key else ENV_CERT_FILE)
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    if not certificate:
        return
    try:
        context.load_cert_chain(certificate, key or None, password=no_password)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ENV_CERT_FILE}, {ENV_KEY_FILE}: {why_unusable(certificate, error)}") from None


def no_password() -> str:
    """Called for an encrypted key, for which ssl would ask on the terminal."""
    return ""


def why_unusable(path: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no PEM file").replace("_", " ").lower()
        return f"{path} cannot be used: {reason}"
    return f"cannot read {error.filename or path}: {(error.strerror or str(error)).lower()}"
