"""The format `ip route`: routes of the main table that throw away what the host sends to its own neighbours.

A `blackhole` or `unreachable` route is common on nodes of Kubernetes, for the block of a node's pods (Calico), and on
routers. It is a fault where it covers a part of a network that an interface of the host is in: then the neighbours
there cannot be reached.

Source: iproute2, ip/iproute.c; the types of routes are those of ip-route(8).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_ADDRESS: Final = r"[0-9a-f:.]{2,39}(?:/\d{1,3})?"
_CONNECTED: Final = re.compile(rf"^({_ADDRESS}) dev (\S{{1,40}}) (?:proto kernel )(?=[^\n]*$)", re.MULTILINE)
_THROWS: Final = re.compile(rf"^((?:blackhole|unreachable|prohibit) ({_ADDRESS})(?: [^\n]{{0,120}})?)$", re.MULTILINE)
_HEAD: Final = re.compile(rf"{_CONNECTED.pattern}|^default via {_ADDRESS} dev \S|{_THROWS.pattern}", re.MULTILINE)
_DAEMONS: Final = re.compile(r"\bproto (?:bird|babel|bgp|zebra|ospf|isis|80)\b")
"""Routing daemons, that may lay a network of pods into that of the hosts."""
_MAX_ROUTES: Final = 4096

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read(section: Section) -> Iterator[Finding | Fact]:
    connected = [(network, match[2]) for match in _first(_CONNECTED, section.text) if (network := _network(match[1]))]
    yield Fact("connected_networks", len(connected))
    for match in _first(_THROWS, section.text):
        thrown = _network(match[2])
        hit = next((each for each in connected if thrown and _covers_neighbours(thrown, each[0])), None)
        if hit:
            yield _finding(match[1].strip(), *hit)


def _first(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return (match for _, match in zip(range(_MAX_ROUTES), pattern.finditer(text), strict=False))


def _network(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _covers_neighbours(thrown: _Network, connected: _Network) -> bool:
    """Whether a route that throws away is chosen for a part of a connected network: the longer prefix is."""
    if connected.prefixlen >= connected.max_prefixlen - 1 or connected.is_link_local:
        return False  # the network of one pod or of a link between two
    same = thrown.version == connected.version and thrown.overlaps(connected)
    return same and thrown.prefixlen > connected.prefixlen


def _finding(line: str, connected: _Network, device: str) -> Finding:
    return finding(
        "NETWORK_DROPS",
        "the routes",
        f"throw away what this host sends to its neighbours in {connected} on {device}: `{line}`",
        severity=Severity.WARNING if _DAEMONS.search(line) else Severity.CRITICAL,
        evidence={"line": line, "network": str(connected), "interface": device},
        fix="Delete the route, and look who set it.",
        commands=("ip route show table all type blackhole", f"ip route del {line}"),
    )


ROUTES: Final = paste_format("ip route", _HEAD, read)
