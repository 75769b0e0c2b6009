"""The format `firewall`: rules that drop packets, as `nft list ruleset`, `iptables -L -v` and `iptables-save -c` print
them with their counts.

Source: nftables' src/rule.c and src/statement.c; iptables' iptables/iptables.c (print_rule4) and iptables-save.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
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
_SCALE: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_MIN_PACKETS: Final = 10
"""The fewest packets that a rule has dropped for it to be more than a stray one."""
_FIX: Final = "Take the rule away, or put one before it that accepts the addresses of the job's hosts."


class _Rule(NamedTuple):
    line: str
    packets: int | None


def read(section: Section) -> Iterator[Finding | Fact]:
    rules = [it for it in _rules(section.text) if _EXCEPT.search(it.line) or not _HARMLESS.search(it.line)]
    yield Fact("rules_that_drop", len(rules))
    hit = [it for it in rules if it.packets]
    for it in hit[:8] or [it for it in rules if it.packets is None][:2]:
        yield _finding(it)


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
        yield _Rule(found[1], int(found[2][:15]) * _SCALE[found[3]])
    for found in _SAVED.finditer(text):
        yield _Rule(found[1], int(found[2][:15]))
    for found in _POLICY.finditer(text):
        yield _Rule(found[1], int((found[2] or found[4])[:15]) * _SCALE[found[3] or ""])


def _finding(it: _Rule) -> Finding:
    counted = f"{it.packets} packets were dropped by" if it.packets else "packets are dropped by"
    many = it.packets is not None and it.packets >= _MIN_PACKETS
    return finding(
        "NETWORK_DROPS",
        "the firewall",
        f"drops what others send to this host, or what it sends: {counted} `{' '.join(it.line.split())[:160]}`",
        severity=Severity.CRITICAL if many else Severity.WARNING,
        evidence={"line": it.line[:300], "packets": it.packets},
        fix=_FIX,
        commands=("nft -a list ruleset", "iptables -L -v -n -x --line-numbers"),
    )


FIREWALL: Final = paste_format("firewall", _HEAD, read)
