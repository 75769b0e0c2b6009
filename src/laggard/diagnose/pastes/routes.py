"""The paste format `ip route`: routes that throw packets of neighbours away, and two interfaces in one network:
the first of the list sends what is meant for the other."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.section import Section, paste_format
from laggard.diagnose.rules import table
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact

_SAYS: Final = table("pastes").sections
_ADDRESS: Final = r"[0-9a-f:.]{2,39}(?:/\d{1,3})?"
_CONNECTED: Final = re.compile(rf"^({_ADDRESS}) dev (\S{{1,40}}) (?:proto kernel )(?=[^\n]*$)", re.MULTILINE)
_THROWS: Final = re.compile(rf"^((?:blackhole|unreachable|prohibit) ({_ADDRESS})(?: [^\n]{{0,120}})?)$", re.MULTILINE)
_ROUTES_HEAD: Final = re.compile(
    rf"{_CONNECTED.pattern}|^default via {_ADDRESS} dev \S|{_THROWS.pattern}", re.MULTILINE
)
_DAEMONS: Final = re.compile(r"\bproto (?:bird|babel|bgp|zebra|ospf|isis|80)\b")
"""Routing daemons, that may lay a network of pods into that of the hosts."""
_MAX_ROUTES: Final = 4096
_MAX_COMPARED: Final = 64

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_routes(section: Section) -> Iterator[Finding | Fact]:
    connected = [(network, match[2]) for match in _first(_CONNECTED, section.text) if (network := _network(match[1]))]
    yield Fact("connected_networks", len(connected))
    for match in _first(_THROWS, section.text):
        thrown = _network(match[2])
        hit = next((each for each in connected if thrown and _covers_neighbours(thrown, each[0])), None)
        if hit:
            yield _route_finding(match[1].strip(), *hit)
    for (network, first), (other, second) in itertools.combinations(connected[:_MAX_COMPARED], 2):
        if network == other and first != second and network.num_addresses > 1:
            yield _SAYS["two_routes"].found({"network": str(network)}, network=network, first=first, second=second)


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


def _route_finding(line: str, connected: _Network, device: str) -> Finding:
    evidence = {"line": line, "network": str(connected), "interface": device}
    severity = Severity.WARNING if _DAEMONS.search(line) else Severity.CRITICAL
    return _SAYS["route"].found(evidence, severity, network=connected, device=device, line=line)


ROUTES: Final = paste_format("ip route", _ROUTES_HEAD, read_routes)
