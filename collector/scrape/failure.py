"""The reason why an agent gave no usable answer."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

from laggard.http.tls import failure_text


class FetchFailure(NamedTuple):
    """`state`: down, slow, garbage; `reason`: one line for people."""

    state: str
    reason: str


def broken(error: Exception) -> FetchFailure:
    """The failure of a connection that was there."""
    return _of_tls(error) or FetchFailure("down", f"the connection broke: {_cause(error)}")


def not_connected(error: Exception) -> FetchFailure:
    return _of_tls(error) or FetchFailure("down", f"no connection: {_cause(error)}")


def _of_tls(error: Exception) -> FetchFailure | None:
    return FetchFailure("down", failure_text(error)) if isinstance(error, ssl.SSLError) else None


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: asyncio writes its own text, address and all."""
    if isinstance(error, OSError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error).lower() or type(error).__name__
