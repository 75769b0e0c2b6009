"""The settings of a daemon for OTLP, checked."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from laggard.address import without_login
from laggard.errors import UsageError
from laggard.otlp.message import load

_MAX_FILE_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 16
_HEADER: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([ -~]+)")
_OWN: Final = ("host", "content-length", "content-type", "content-encoding", "connection", "transfer-encoding")


class Destination(NamedTuple):
    """`endpoint`: the URL to post to; `headers_file`: empty: none. It is read anew each time: tokens change."""

    endpoint: str
    interval_seconds: float
    headers_file: str


def destination(endpoint: str, interval_seconds: float, headers_file: str) -> Destination | None:
    """Returns None where there is no endpoint. Raises UsageError where one of them is wrong, or what is needed is not
    installed."""
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"otlp_endpoint is {without_login(endpoint)!r}: give the whole URL, as http://HOST:4318/v1/metrics"
        )
    if parts.username is not None:
        raise UsageError("otlp_endpoint has a password in it: put a header into a file, for otlp_headers_file")
    if not (math.isfinite(interval_seconds) and interval_seconds > 0):
        raise UsageError(f"otlp_interval_seconds is {interval_seconds}: give a number above 0")
    if headers_file:
        read_headers(headers_file)
    load()
    return Destination(endpoint, interval_seconds, headers_file)


def read_headers(path: str, setting: str = "otlp_headers_file") -> dict[str, str]:
    """The lines `NAME: VALUE` of a file. Raises UsageError, whose text has nothing of what is in it. `setting`: what
    names the file."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_MAX_FILE_BYTES)
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
