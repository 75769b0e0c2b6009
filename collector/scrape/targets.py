"""The agents to ask, as people write them: `n1`, `n1:19400`, `http://n1:19400`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from laggard.constants import AGENT_PORT
from laggard.errors import UsageError

LOCAL_AGENT = f"127.0.0.1:{AGENT_PORT}"
"""Whom a collector asks that was told of nobody: the agent of its own machine."""


class Target(NamedTuple):
    scheme: str  # http, https
    address: str  # host:port

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_targets(texts: Iterable[str]) -> tuple[Target, ...]:
    """In the order given, each agent once. Raises UsageError naming the one that cannot be read."""
    return tuple(dict.fromkeys(parse_target(text) for text in texts))


def parse_target(text: str) -> Target:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port if parts.port is not None else AGENT_PORT
    except ValueError:
        raise _bad(text) from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or not _plain(host):
        raise _bad(text)
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise _bad(text)
    return Target(parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _plain(host: str) -> bool:
    return host.isascii() and host.isprintable() and not set(host) & set(" \"'<>\\^`{|}%,;")


def _bad(text: str) -> UsageError:
    return UsageError(f"cannot read target {text!r}: write HOST:PORT or http://HOST:PORT")
