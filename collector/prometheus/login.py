"""The part of a request to Prometheus beside the query: the login and other headers, from files. A collector asks for
weeks, in which both rotate: the files are read anew when they change."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final

from laggard.errors import UsageError
from laggard.secret_files import ReadAnew, read_secret, warn_of_exposed

_MAX_SECRET_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 16
_HEADER: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([ -~]+)")
_OWN: Final = ("host", "content-length", "content-type", "content-encoding", "connection", "transfer-encoding")


class Login:
    """The headers of the next query."""

    def __init__(
        self,
        token_file: str | None = None,
        basic_file: str | None = None,
        headers_file: str | None = None,
        headers_setting: str = "prometheus_headers_file",
    ) -> None:
        """Of the two files of a login the first that is named counts. `headers_setting`: the flag or setting that names
        the file of headers. Raises UsageError."""
        self._files = []
        if path := token_file or basic_file:
            self._files.append(_login_file(path, basic=not token_file))
        if headers_file:
            self._files.append(_headers_file(headers_file, headers_setting))

    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for file in self._files:
            found.update(file.value())
        return found


def _login_file(path: str, basic: bool) -> ReadAnew[Mapping[str, str]]:
    def read() -> Mapping[str, str]:
        return {"Authorization": _basic(path) if basic else f"Bearer {_secret(path)}"}

    return ReadAnew(
        path, read, "login for Prometheus stays", lambda _: f"the login for Prometheus is read anew from {path}"
    )


def _headers_file(path: str, setting: str) -> ReadAnew[Mapping[str, str]]:
    def read() -> Mapping[str, str]:
        headers = _read_headers(path, setting)
        if any(name.lower() == "authorization" for name in headers):
            raise UsageError(f"{path} has a login in it: that goes into a file of its own, for its own setting")
        return headers

    return ReadAnew(path, read, f"{setting} stays", lambda _: f"{setting} is read anew from {path}")


def _read_headers(path: str, setting: str) -> dict[str, str]:
    """The lines `NAME: VALUE` of a file. Raises UsageError, whose text has nothing of what is in it. `setting`: what
    names the file."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_MAX_SECRET_BYTES)
    except OSError as error:
        raise UsageError(f"{setting} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{setting} {path} is not ASCII text") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_HEADER.fullmatch(line) for line in lines]
    if not lines or len(lines) > _MAX_HEADERS or not all(found):
        raise UsageError(f"{setting} {path} has to have 1 to {_MAX_HEADERS} lines of the form NAME: VALUE")
    headers = {each[1]: each[2] for each in found if each}
    if any(name.lower() in _OWN for name in headers):
        raise UsageError(f"{setting} {path} sets one of the headers that laggard sets: {', '.join(_OWN)}")
    return headers


def _basic(path: str) -> str:
    pair = _secret(path)
    if ":" not in pair:
        raise UsageError(f"{path} has no USER:PASSWORD in it")
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _secret(path: str) -> str:
    """The only line of the file. Its text is in no message."""
    text = read_secret(path, "the login for Prometheus in", _MAX_SECRET_BYTES)
    if not text.isascii() or not text.isprintable():
        raise UsageError(f"{path} has to hold one line of printable ASCII, without which there is no login")
    warn_of_exposed(path, "the login for Prometheus in")
    return text
