"""The agents to scrape, as people write them: `n1`, `n1:19400`, `http://n1:19400`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from laggard.address import without_login
from laggard.constants import AGENT_PORT
from laggard.errors import UsageError

LOCAL_AGENT = f"127.0.0.1:{AGENT_PORT}"
"""The default target: the agent of the collector's own machine."""


class Target(NamedTuple):
    scheme: str  # http, https
    address: str  # host:port

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


def parse_targets(texts: Iterable[str]) -> tuple[Target, ...]:
    """The targets in the order given, each once. Raises UsageError that names the one that cannot be read."""
    return tuple(dict.fromkeys(parse_target(text) for text in texts))


def parse_target(text: str) -> Target:
    """Raises UsageError where `text` is not a target."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port if parts.port is not None else AGENT_PORT
    except ValueError:
        raise _invalid(text) from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or not _is_host(host):
        raise _invalid(text)
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise _invalid(text)
    return Target(parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _is_host(text: str) -> bool:
    return text.isascii() and text.isprintable() and not set(text) & set(" \"'<>\\^`{|}%,;")


def _is_bare_ipv6(text: str) -> bool:
    """Whether it is most likely an IPv6 address without brackets."""
    return "[" not in text and text.rpartition("://")[2].count(":") > 1


def _invalid(text: str) -> UsageError:
    login = ", without a user and a password" if "@" in text else ""
    brackets = ", an IPv6 address in brackets: [fd00::1]:19400" if _is_bare_ipv6(text) else ""
    return UsageError(
        f"cannot read target {without_login(text)!r}: write HOST:PORT or http://HOST:PORT{login}{brackets}"
    )
