"""The format `ip link`: network interfaces that were in use and are down: `ip link`, `ip -s link`, `ip addr` and their
short form (`-br`). A port that nobody cabled is no fault: one that has an address or carried bytes was in use.

Source: iproute2, ip/ipaddress.c; the flags are those of if.h in Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_LONG: Final = re.compile(
    r"^\d{1,6}: ([\w.-]{1,40})(?:@[\w.-]{1,40})?: <([A-Z0-9_,-]*)> mtu \d+.{0,200}? state (\w+)", re.MULTILINE
)
_BRIEF: Final = re.compile(
    r"^([\w.-]{1,40})(?:@[\w.-]{1,40})? +(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|TESTING|NOTPRESENT)"
    r"(?: +[0-9a-f:]{17,59})?(?: +<([A-Z0-9_,-]*)>)?((?: +[0-9a-f.:]+/\d+)*)[^\n]*$",
    re.MULTILINE,
)
_HEAD: Final = re.compile(rf"{_LONG.pattern}|^lo +UNKNOWN +(?:00:){{5}}00 +<LOOPBACK", re.MULTILINE)
_MADE: Final = re.compile(r"lo|docker.*|virbr.*|br-.*|cni.*|cali.*|flannel.*|veth[0-9a-f]{6,}|dummy.*|ifb.*|tun.*|wl.*")
"""Interfaces that containers, virtual machines and laptops make."""
_SHAPED: Final = re.compile(r"^\d{1,6}: ([\w.-]{1,40})(?:@[\w.-]{1,40})?: <[^>\n]*> mtu \d+ qdisc (tbf|netem)\b", re.M)
_ADDRESS: Final = re.compile(r"^[^\S\n]+inet6? (?!fe80)\S", re.MULTILINE)
_RECEIVED: Final = re.compile(r"^[^\S\n]+RX:[^\n]*bytes[^\n]*\n\s+(\d+)", re.MULTILINE)
_SET_UP: Final = "Set it up again, and look who set it down."
_CHECK: Final = "Check the cable, the transceiver and the switch's port."
_LOOK: Final = "dmesg -T | grep -i link"
_DOWN: Final = ("DOWN", "LOWERLAYERDOWN", "NOTPRESENT")


class _Interface(NamedTuple):
    name: str
    state: str
    flags: tuple[str, ...]
    used: bool
    line: str

    @property
    def was_set_down(self) -> bool:
        return bool(self.flags) and "UP" not in self.flags


def read(section: Section) -> Iterator[Finding | Fact]:
    interfaces = [it for it in (*_long(section.text), *_brief(section.text)) if not _MADE.fullmatch(it.name)]
    yield Fact("interfaces", {it.name: it.state for it in interfaces[:64]})
    none_up = not any(it.state == "UP" for it in interfaces)
    for shaped in _SHAPED.finditer(section.text):
        yield _limited(shaped[1], shaped[2], shaped[0].strip())
    for it in interfaces:
        if it.state in _DOWN and (it.used or none_up):
            yield _down(it)


def _long(text: str) -> Iterator[_Interface]:
    for head, part in parts_of(_LONG, text):
        received = _RECEIVED.search(part)
        used = bool(_ADDRESS.search(part)) or bool(received and int(received[1][:15]))
        yield _Interface(head[1], head[3], tuple(head[2].split(",")), used, head[0].strip())


def _brief(text: str) -> Iterator[_Interface]:
    for row in _BRIEF.finditer(text):
        flags = tuple(row[3].split(",")) if row[3] else ()
        yield _Interface(row[1], row[2], flags, bool(row[4]), row[0].strip())


def _limited(name: str, shaper: str, line: str) -> Finding:
    return finding(
        "NETWORK_DROPS",
        f"interface {name}",
        f"has traffic shaping ({shaper}), which holds back or drops what it sends",
        severity=Severity.WARNING,
        evidence={"line": line[:300]},
        fix="Look how it is set, and take it away unless somebody wants it on a training network.",
        commands=(f"tc -s qdisc show dev {name}", f"tc qdisc del dev {name} root"),
    )


def _down(it: _Interface) -> Finding:
    how = "was set down" if it.was_set_down else "has no link: its cable, or the other end, is down"
    return finding(
        "RDMA_NETDEV_DOWN",
        f"interface {it.name}",
        f"{how} (state {it.state})",
        severity=Severity.CRITICAL if it.was_set_down else Severity.WARNING,
        evidence={"line": it.line[:300]},
        fix=_SET_UP if it.was_set_down else _CHECK,
        commands=(f"ip link set {it.name} up",) if it.was_set_down else (f"ethtool {it.name}", _LOOK),
    )


IP_LINK: Final = paste_format("ip link", _HEAD, read)
