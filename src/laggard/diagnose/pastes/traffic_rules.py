"""The formats `firewall`, `ip route` and `tc -s qdisc`: rules, routes and shaping that hold back or drop what a host
sends.

A `blackhole` or `unreachable` route is common on nodes of Kubernetes, for the block of a node's pods (Calico), and on
routers. It is a fault where it covers a part of a network that an interface of the host is in: then the neighbours
there cannot be reached. Rules of a firewall are those of `nft list ruleset`, `iptables -L -v` and `iptables-save -c`,
with their counts.

Sources: nftables' src/rule.c and src/statement.c; iptables' iptables/iptables.c (print_rule4) and iptables-save.c;
iproute2, ip/iproute.c, the types of routes being those of ip-route(8), tc/tc_qdisc.c and tc/q_tbf.c, q_netem.c,
q_htb.c; `tc -s class` has the same counts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.section import Section, parts_of, paste_format
from laggard.diagnose.rules import table
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact

_SAYS: Final = table("pastes").sections
_FIREWALL_HEAD: Final = re.compile(
    r"^table (?:inet|ip6?|arp|bridge|netdev) \S{1,64} \{|^Chain \S{1,64} \((?:policy \w+|\d+ references)"
    r"|^\*(?:filter|raw|mangle|nat)$|^:\w{1,30} (?:ACCEPT|DROP|-) \[\d+:\d+\]",
    re.MULTILINE,
)
_NFT: Final = re.compile(
    r"^[^\S\n]*((?:\S.*? )?counter packets (\d+) bytes (\d+)\b.*\b(?:drop|reject)\b.*)$", re.MULTILINE
)
_NFT_BARE: Final = re.compile(
    r"^[^\S\n]*((?!type )(?:\S.* )?(?:drop|reject)(?: with [^\n{}]{1,60})?)\s*(?:#.*)?$", re.MULTILINE
)
_IPTABLES: Final = re.compile(
    r"^[^\S\n]*((\d+)([KMG]?)\s+(\d+)([KMG]?)\s+(?:DROP|REJECT)\s+\S+\s+.{2,6}\s+\S+\s+\S+\s+\S+\s+\S+.*)$",
    re.MULTILINE,
)
_SAVED: Final = re.compile(r"^[^\S\n]*(\[(\d+):(\d+)\] -A .*-j (?:DROP|REJECT)\b.*)$", re.MULTILINE)
_POLICY: Final = re.compile(
    r"^(Chain \S{1,64} \(policy DROP (\d+)([KMG]?) packets[^\n]*|:(?:INPUT|OUTPUT|FORWARD) DROP \[(\d+):\d+\])",
    re.MULTILINE,
)
_HARMLESS: Final = re.compile(
    r"\bct ?state (?:\{ ?)?invalid|ctstate INVALID|state INVALID|\budp\b|\bicmp|\bipv6-icmp|ADDRTYPE|pkttype|fib daddr"
    r"|broadcast|multicast|224\.0\.0\.|\b(?:tcp )?dport (?:22|23|3389)\b|dpt:(?:22|23|3389)\b|\bDOCKER",
    re.IGNORECASE,
)
"""Rules that drop what no job sends."""
_EXCEPT: Final = re.compile(r"(?:dport|sport) !=|! --dport|dpt:!")
_FIREWALL_SCALE: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_MIN_PACKETS: Final = 10
"""The fewest packets that a rule has dropped for it to be more than a stray one."""


class _Rule(NamedTuple):
    line: str
    packets: int | None


def read_firewall(section: Section) -> Iterator[Finding | Fact]:
    rules = [it for it in _rules(section.text) if _EXCEPT.search(it.line) or not _HARMLESS.search(it.line)]
    yield Fact("rules_that_drop", len(rules))
    hit = [it for it in rules if it.packets]
    for it in hit[:8] or [it for it in rules if it.packets is None][:2]:
        yield _firewall_finding(it)


def _rules(text: str) -> Iterator[_Rule]:
    counted = set()
    for found in _NFT.finditer(text):
        counted.add(found[1])
        yield _Rule(found[1], int(found[2][:15]))
    if "table " in text and " {" in text:
        for found in _NFT_BARE.finditer(text):
            if found[1] not in counted and "counter" not in found[1]:
                yield _Rule(found[1], None)
    for found in _IPTABLES.finditer(text):
        yield _Rule(found[1], int(found[2][:15]) * _FIREWALL_SCALE[found[3]])
    for found in _SAVED.finditer(text):
        yield _Rule(found[1], int(found[2][:15]))
    for found in _POLICY.finditer(text):
        yield _Rule(found[1], int((found[2] or found[4])[:15]) * _FIREWALL_SCALE[found[3] or ""])


def _firewall_finding(it: _Rule) -> Finding:
    many = it.packets is not None and it.packets >= _MIN_PACKETS
    return _SAYS["firewall"].found(
        {"line": it.line[:300], "packets": it.packets},
        Severity.CRITICAL if many else Severity.WARNING,
        counted=f"{it.packets} packets were dropped by" if it.packets else "packets are dropped by",
        line=" ".join(it.line.split())[:160],
    )


FIREWALL: Final = paste_format("firewall", _FIREWALL_HEAD, read_firewall)


_ADDRESS: Final = r"[0-9a-f:.]{2,39}(?:/\d{1,3})?"
_CONNECTED: Final = re.compile(rf"^({_ADDRESS}) dev (\S{{1,40}}) (?:proto kernel )(?=[^\n]*$)", re.MULTILINE)
_THROWS: Final = re.compile(rf"^((?:blackhole|unreachable|prohibit) ({_ADDRESS})(?: [^\n]{{0,120}})?)$", re.MULTILINE)
_ROUTES_HEAD: Final = re.compile(
    rf"{_CONNECTED.pattern}|^default via {_ADDRESS} dev \S|{_THROWS.pattern}", re.MULTILINE
)
_DAEMONS: Final = re.compile(r"\bproto (?:bird|babel|bgp|zebra|ospf|isis|80)\b")
"""Routing daemons, that may lay a network of pods into that of the hosts."""
_MAX_ROUTES: Final = 4096

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_routes(section: Section) -> Iterator[Finding | Fact]:
    connected = [(network, match[2]) for match in _first(_CONNECTED, section.text) if (network := _network(match[1]))]
    yield Fact("connected_networks", len(connected))
    for match in _first(_THROWS, section.text):
        thrown = _network(match[2])
        hit = next((each for each in connected if thrown and _covers_neighbours(thrown, each[0])), None)
        if hit:
            yield _route_finding(match[1].strip(), *hit)


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


_QUEUES_HEAD: Final = re.compile(
    r"^[ \t]*(?:qdisc|class) (\w{2,20}) [0-9a-f]*:[0-9a-f]* ?(?:dev (\S{1,40}))?[^\n]*$", re.MULTILINE
)
_DEVICE: Final = re.compile(r"\bdev ([\w.@-]{1,40})")
_SHAPERS: Final = ("tbf", "netem", "htb", "hfsc", "police", "cbs", "etf")
_RATE: Final = re.compile(r"\brate ([\d.]+)([KMGT]?)(bit|bps)\b", re.IGNORECASE)
_COUNTS: Final = re.compile(r"Sent (\d+) bytes (\d+) pkt \(dropped (\d+), overlimits (\d+)")
_BACKLOG: Final = re.compile(r"\bbacklog (\d+)([KMG]?)b (\d+)p")
_HARM: Final = re.compile(r"\b(?:loss|delay|corrupt|duplicate|reorder) (?:random )?[\d.]+")
_QUEUES_SCALE: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SLOW_BITS: Final = 10**9
"""The rate below which a port is too slow for training, whatever the model."""
_MIN_DROPPED_SHARE: Final = 0.01


class _Shaper(NamedTuple):
    kind: str
    device: str
    bits: float | None
    sent: int
    dropped: int
    overlimits: int
    waiting: int
    line: str


def read_queues(section: Section) -> Iterator[Finding | Fact]:
    named = _DEVICE.search(section.command)
    found = [_shaper(head, part, named[1] if named else "") for head, part in parts_of(_QUEUES_HEAD, section.text)]
    yield Fact("queueing_disciplines", len(found))
    for it in found:
        if says := _says(it):
            yield _queue_finding(it, says)


def _shaper(head: re.Match[str], part: str, device: str) -> _Shaper:
    rate, counts, backlog = _RATE.search(head[0]), _COUNTS.search(part), _BACKLOG.search(part)
    bits = float(rate[1]) * _QUEUES_SCALE[rate[2].upper()] * (8 if rate[3].lower() == "bps" else 1) if rate else None
    sent, dropped, overlimits = (int(counts[place][:15]) for place in (2, 3, 4)) if counts else (0, 0, 0)
    waiting = int(backlog[3][:15]) if backlog else 0
    return _Shaper(head[1], head[2] or device, bits, sent, dropped, overlimits, waiting, head[0].strip())


def _says(it: _Shaper) -> str:
    """What a shaper does, continuing a sentence; empty where it does no harm."""
    lost = f" and dropped {it.dropped} packets of {it.dropped + it.sent}" if it.dropped else ""
    if it.kind == "netem" and (harm := _HARM.findall(it.line)):
        return f"delays or loses packets on purpose ({', '.join(harm)}){lost}"
    if it.kind in _SHAPERS and it.bits is not None and it.bits < _SLOW_BITS and (it.dropped or it.overlimits):
        return f"sends at {_rate_text(it.bits)} at most{lost}"
    if it.dropped and it.dropped >= _MIN_DROPPED_SHARE * (it.dropped + it.sent):
        return f"dropped {it.dropped} packets of {it.dropped + it.sent}"
    return ""


def _rate_text(bits: float) -> str:
    name = next((name for name in "GMK" if bits >= _QUEUES_SCALE[name]), "")
    return f"{bits / _QUEUES_SCALE[name]:g} {name.lower() if name == 'K' else name}bit/s"


def _queue_finding(it: _Shaper, says: str) -> Finding:
    return _SAYS["shaper" if it.kind in _SHAPERS else "queue"].found(
        {"line": it.line[:300], "dropped": it.dropped, "overlimits": it.overlimits, "backlog": it.waiting},
        where=f" of {it.device}" if it.device else "",
        kind=it.kind,
        told=says,
        dev=it.device or "DEV",
    )


TRAFFIC_CONTROL: Final = paste_format("tc", _QUEUES_HEAD, read_queues)
