"""Asks an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import Final, cast
from urllib.parse import urlsplit

from laggard.collector.scrape.exchange import Exchange, Place, Question
from laggard.collector.scrape.failure import FetchFailure as FetchFailure
from laggard.collector.scrape.failure import broken
from laggard.collector.scrape.kept_connections import KeptConnections
from laggard.collector.scrape.slots import Slot

_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = re.compile("[!-~]*")
_TOKEN: Final = re.compile("[ -~]*")


async def fetch(
    url: str,
    timeout_seconds: float,
    max_bytes: int,
    server_name: str = "",
    *,
    method: str = "GET",
    token: str = "",
    slot: Slot | None = None,
    kept: KeptConnections | None = None,
) -> bytes | FetchFailure:
    """The body of an answer with status 200 that is complete within `timeout_seconds` and at most `max_bytes` long.
    `server_name`: the name that an https server's certificate must have; empty: the URL's host. `token`: sent as
    Bearer, unless empty. `slot`: the agent's place among those that are asked; what it waits for its turn to be read
    does not count. `kept`: where connections are kept for the next question.

    It asks the agent itself: a proxy from the environment is for the outside world."""
    exchange = Exchange(timeout_seconds, max_bytes, slot)
    try:
        place, target = _parts(url)
        request = _request(place.netloc, target, method, token, keeps=kept is not None)
        exchange.ask(Question(place, server_name or place.host, request, method == "GET"), kept)
        found = await exchange.found
        if slot is not None and found is None:
            await slot.turn()
            found = await exchange.rest()
        return cast("bytes | FetchFailure", found)
    except ValueError as error:
        return broken(error)
    finally:
        exchange.end()


def _parts(url: str) -> tuple[Place, str]:
    """The URL's place and the rest of it. Raises ValueError."""
    begin = url.find("/", url.find("://") + 3)
    return (_place(url), "/") if begin < 0 else (_place(url[:begin]), url[begin:])


@functools.lru_cache(1 << 15)
def _place(url: str) -> Place:
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme
    return Place(scheme, host, parts.port or _PORTS[scheme], parts.netloc, "%" not in host and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _request(netloc: str, target: str, method: str, token: str, keeps: bool) -> bytes:
    """Raises ValueError where a part of it is no part of a request."""
    if not _VISIBLE.fullmatch(target + netloc) or not _TOKEN.fullmatch(token):
        raise ValueError("what is asked for is no URL, or the token no line of ASCII")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {netloc}\r\nAccept: application/json\r\n"
        # No compression: a few kilobytes can inflate to gigabytes before they are counted.
        "Accept-Encoding: identity\r\nUser-Agent: laggard-collector\r\n"
        + f"Connection: {'keep-alive' if keeps else 'close'}\r\n"
        + (f"Authorization: Bearer {token}\r\n" if token else "")
        + ("Content-Length: 0\r\n" if method == "POST" else "")
        + "\r\n"
    ).encode("ascii")
