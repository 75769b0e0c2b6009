"""The names that the collector answers to. A web page of somebody else can let its own name point to this address (DNS
rebinding), and the browser then lets it read what is answered: so only names that nobody else can own are served."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence


def is_own_name(host: str, allowed: Sequence[str]) -> bool:
    """Whether a request with this Host header is answered. Addresses and names without a dot are, since neither can be
    made to point here by somebody outside; this machine's name is; and `allowed`, where `*.DOMAIN` stands for all names
    in a domain and `*` for all. An empty header is no browser's."""
    name = _without_port(host).rstrip(".").lower()
    if not name or "." not in name or name == os.uname().nodename.lower() or _is_address(name):
        return True
    return any(_matches(name, pattern.lower()) for pattern in allowed)


def _matches(name: str, pattern: str) -> bool:
    return pattern == "*" or name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
