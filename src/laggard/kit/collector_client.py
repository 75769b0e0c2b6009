"""Asks a running collector, for the commands that show what it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from laggard.kit.address import as_url, without_login
from laggard.kit.constants import COLLECTOR_PORT
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.words import printable_line

if TYPE_CHECKING:
    import ssl

    import httpx


def answer(url: str, document: str, query: Mapping[str, str]) -> AbstractContextManager[httpx.Response]:
    """The answer to a GET of /api/v1/`document`, to be read. Raises UsageError."""
    return _answer(url, "GET", document, params=dict(query))


def ask(url: str, path: str, body: bytes) -> bytes:
    """The answer to a POST of `body` to /api/v1/`path`. Raises UsageError."""
    with _answer(url, "POST", path, content=body) as found:
        return found.read()


@contextlib.contextmanager
def _answer(url: str, method: str, path: str, **asked: Any) -> Iterator[httpx.Response]:
    import httpx

    url = as_url(url, COLLECTOR_PORT)
    try:
        address = f"{url.rstrip('/')}/api/v1/{path}"
        with httpx.stream(method, address, timeout=10.0, verify=_verify(url), **asked) as found:
            if found.status_code != httpx.codes.OK:
                found.read()
                raise (CannotTell if found.is_server_error else UsageError)(_refusal_text(url, found))
            yield found
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CannotTell(_no_answer_text(url, error)) from None


def _no_answer_text(url: str, error: Exception) -> str:
    import httpx

    from laggard.kit.tls import ASKS_FOR_CERTIFICATE, tls_failure

    if failure := tls_failure(error):
        return f"the collector at {without_login(url)}: {failure}"
    if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
        hint = ASKS_FOR_CERTIFICATE if url.startswith("https:") else "where it speaks TLS, write https://"
        return f"the collector at {without_login(url)} closed the connection; {hint}"
    return f"no collector answers at {without_login(url)}; start one, or name it with --collector or LAGGARD_COLLECTOR"


def _verify(url: str) -> ssl.SSLContext | bool:
    """The context, or False, against which a collector's TLS certificate is checked; making it takes longer than to
    ask."""
    from laggard.kit.tls import client_context

    return client_context() if url.startswith("https:") else True


def _refusal_text(url: str, found: httpx.Response) -> str:
    import httpx

    from laggard.kit.tls import ENV_CERT_FILE

    is_page = found.headers.get("content-type", "").startswith("text/html")  # a reverse proxy's own
    text = "" if is_page else printable_line(found.text, 1000)
    if found.status_code == 409:  # a job's name that several users have: the text has the choices
        return text
    if found.status_code == httpx.codes.UNAUTHORIZED and not text:
        text = f"log in: write USER:PASSWORD@ before the host, or set {ENV_CERT_FILE}"
    return f"the collector at {without_login(url)} answers {found.status_code}" + (f": {text}" if text else "")
