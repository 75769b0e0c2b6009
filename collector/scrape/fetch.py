"""GETs from an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

import httpx


class FetchFailure(NamedTuple):
    """Why there is no usable answer."""

    state: str  # down, slow, garbage
    reason: str


def make_client(timeout_seconds: float, concurrency: int) -> httpx.AsyncClient:
    """A client that asks agents directly: a proxy from the environment is for the outside world."""
    # Connecting gets less than the whole budget, so that a host that is off can be told from a slow agent.
    timeout = httpx.Timeout(timeout_seconds, connect=timeout_seconds * 0.8, pool=None)
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    # No compression: a few kilobytes can inflate to gigabytes before they are counted.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "laggard-collector"}
    return httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers, trust_env=False)


async def fetch(client: httpx.AsyncClient, url: str, timeout_seconds: float, max_bytes: int) -> bytes | FetchFailure:
    """The body of an answer with status 200 that is complete within `timeout_seconds` and at most `max_bytes` long."""
    try:
        # httpx bounds the time between two bytes; bytes that trickle in need a bound on the whole.
        return await asyncio.wait_for(_get(client, url, max_bytes), timeout_seconds)
    except httpx.ConnectTimeout:
        return FetchFailure("down", "no connection: the host does not answer")
    except (asyncio.TimeoutError, httpx.TimeoutException):
        return FetchFailure("slow", f"no complete answer within {timeout_seconds:g} s")
    except httpx.ConnectError as error:
        return FetchFailure("down", f"no connection: {_cause(error)}")
    except httpx.RemoteProtocolError as error:
        # Also raised where the agent went away between two requests on a kept connection.
        gone = "disconnected" in str(error)
        return (
            FetchFailure("down", "it closed the connection") if gone else FetchFailure("garbage", f"not HTTP: {error}")
        )
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return FetchFailure("down", f"the connection broke: {_cause(error) or type(error).__name__}")


async def _get(client: httpx.AsyncClient, url: str, max_bytes: int) -> bytes | FetchFailure:
    async with client.stream("GET", url) as response:
        if response.status_code != 200:
            return FetchFailure("garbage", f"HTTP {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            return FetchFailure("garbage", "a compressed answer, which was not asked for")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                return FetchFailure("garbage", f"an answer of more than {max_bytes} bytes")
        return bytes(body)


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: the exceptions around it say only that all attempts failed."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, OSError) and chain.errno:
            # asyncio writes its own text, address and all; a failed name lookup has its own, negative numbers.
            return (os.strerror(chain.errno) if chain.errno > 0 else chain.strerror or str(chain)).lower()
        chain = chain.__cause__ or chain.__context__
    text = str(error).lower()
    return "connection refused" if "all connection attempts failed" in text else text
