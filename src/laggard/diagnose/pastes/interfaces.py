"""The formats `ethtool DEV`, `ethtool --show-fec`, `ethtool -m` and `ip link`: interfaces that are down or slower
than both ends can, and transceivers without light.

A port that nobody cabled is no fault: one that has an address or carried bytes was in use.

Sources: ethtool (netlink/settings.c, netlink/fec.c, qsfp.c, cmis.c, sfpdiag.c); iproute2, ip/ipaddress.c; the flags are
those of if.h in Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.pastes.rdma_ports import FELL_BACK
from laggard.diagnose.pastes.section import Items, Lack, Section, parts_of, paste_format
from laggard.diagnose.rules import patterns, table
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "interfaces_")

_SAYS: Final = table("pastes").sections


class _Settings(NamedTuple):
    device: str
    speed: int
    link: bool | None
    reason: str
    advertised: frozenset[int]
    partner: frozenset[int]
    supported: frozenset[int]


def read_settings(section: Section) -> Items:
    ports = [_settings(match[1], part) for match, part in parts_of(_P["settings"], section.text)]
    yield Fact("speeds_megabits", {port.device: port.speed for port in ports})
    for port in ports:
        if port.link is False:
            yield from _without_link(port, ports)
        elif port.speed:
            yield from _slow(port, ports)
        elif port.link is None:
            yield Lack(f"no link and no speed of {port.device} is in it: run ethtool {port.device} as root")


def _settings(device: str, part: str) -> _Settings:
    speed, link = _P["speed"].search(part), _P["link"].search(part)
    return _Settings(
        device,
        int(speed[1]) if speed else 0,
        link[1] == "yes" if link else None,
        (link[2] or "") if link else "",
        _modes("Advertised link modes", part),
        _modes("Link partner advertised link modes", part),
        _modes("Supported link modes", part),
    )


def _modes(name: str, part: str) -> frozenset[int]:
    """Returns the speeds that follow a heading, in Mb/s; they go on in lines without a colon."""
    found = re.search(rf"^[^\S\n]*{name}:((?:[^:\n]*\n)+)", part + "\n", re.MULTILINE)
    return frozenset(int(speed) for speed in _P["modes"].findall(found[1])) if found else frozenset()


def _without_link(port: _Settings, ports: Sequence[_Settings]) -> Iterator[Finding]:
    """Judges by the peers: a port without a link among others without one is left empty."""
    peers = [other for other in ports if other.supported == port.supported and other is not port]
    up = sum(bool(other.link) for other in peers)
    if peers and 2 * up <= len(peers):
        return
    why = f" ({port.reason})" if port.reason else ""
    severity = Severity.CRITICAL if up else Severity.WARNING
    evidence = {"line": "Link detected: no", "reason": port.reason or None, "peers_with_link": up}
    yield _SAYS["no_link"].found(evidence, severity, device=port.device, why=why)


def _slow(port: _Settings, ports: Sequence[_Settings]) -> Iterator[Finding]:
    both = port.advertised & port.partner
    usual = [other.speed for other in ports if other.supported == port.supported and other.speed > port.speed]
    if both and port.speed < max(both):
        told = f"both ends advertise {max(both)} Mb/s"
    elif port.advertised and port.speed < min(port.advertised):
        told = f"it advertises {max(port.advertised)} Mb/s alone"
    elif 2 * len(usual) > len(ports):
        told = f"most others of its kind run at {max(usual)} Mb/s"
    elif port.supported and port.speed < FELL_BACK * max(port.supported):
        told = f"it supports {max(port.supported)} Mb/s"
    else:
        return
    yield _SAYS["slow_link"].found({"speed_megabits": port.speed}, device=port.device, speed=port.speed, told=told)


def compare_fec(sections: Sequence[Section]) -> Items:
    """Compares ports of all hosts in the text: a port without error correction among ports that have it."""
    found: list[tuple[str, str, str]] = []
    for section in sections:
        for match, part in parts_of(_P["fec"], section.text):
            active = re.search(r"^Active FEC encodings?: (.{1,80})$", part, re.MULTILINE)
            found.append((section.host, match[1], active[1].strip() if active else ""))
    others = {active for _, _, active in found if active and active.lower() not in ("off", "none", "auto")}
    for host, device, encoding in found:
        if others and encoding.lower() in ("off", "none"):
            evidence = {"host": host or None, "fec": encoding}
            yield _SAYS["no_fec"].found(evidence, device=device, encoding=encoding, others=", ".join(sorted(others)))


def read_fec(section: Section) -> Items:
    yield Fact("fec", [match[1] for match, _ in parts_of(_P["fec"], section.text)])


ETHTOOL: Final = paste_format("ethtool", _P["settings"], read_settings)
ETHTOOL_FEC: Final = paste_format("ethtool --show-fec", _P["fec"], read_fec, compare_fec)


MIN_LIGHT_DBM: Final = -20.0
"""The least power that any transceiver of a data centre receives: below it there is no light."""


def read_module(section: Section) -> Items:
    named = _P["device"].search(section.command)
    device = f"the transceiver of {named[1]}" if named else "the transceiver"
    light = _P["power"].findall(section.text)
    lost = [_joined(*match) for match in light if _dbm(match[1]) < MIN_LIGHT_DBM]
    dark = bool(light) and len(lost) == len(light)  # the other end may be off, or nobody uses the port
    flags = [" ".join(filter(None, match)) for match in _P["alarm"].findall(section.text)]
    alarms = [flag for flag in flags if "alarm" in flag] + _P["loss"].findall(section.text)
    yield Fact("alarms", len(alarms))
    if "optical power" not in section.text and "ermal" not in section.text and "emperature" not in section.text:
        yield Lack("no measured light is in it: a copper cable, or run ethtool -m DEV as root")
    if alarms or lost:
        told = ", ".join([*alarms[:3], *lost[:3]])
        severity = Severity.WARNING if dark else Severity.CRITICAL
        yield _SAYS["dark"].found({"alarms": alarms[:16], "light": lost[:16]}, severity, device=device, told=told)
    elif flags:
        yield _SAYS["near_limits"].found({"warnings": flags[:16]}, device=device, told=", ".join(flags[:3]))


def _joined(channel: str, dbm: str) -> str:
    return f"rx power {channel} {dbm} dBm".replace("  ", " ")


def _dbm(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


ETHTOOL_MODULE: Final = paste_format("ethtool -m", _P["module"], read_module)


_LONG: Final = _P["long"]
_HEAD: Final = re.compile(rf"{_LONG.pattern}|^lo +UNKNOWN +(?:00:){{5}}00 +<LOOPBACK", re.MULTILINE)
_MADE: Final = re.compile(r"lo|docker.*|virbr.*|br-.*|cni.*|cali.*|flannel.*|veth[0-9a-f]{6,}|dummy.*|ifb.*|tun.*|wl.*")
"""Interfaces that containers, virtual machines and laptops make."""
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


def read_links(section: Section) -> Iterator[Finding | Fact]:
    interfaces = [it for it in (*_long(section.text), *_brief(section.text)) if not _MADE.fullmatch(it.name)]
    yield Fact("interfaces", {it.name: it.state for it in interfaces[:64]})
    none_up = not any(it.state == "UP" for it in interfaces)
    for shaped in _P["shaped"].finditer(section.text):
        yield _SAYS["shaped"].found({"line": shaped[0].strip()[:300]}, name=shaped[1], shaper=shaped[2])
    for it in interfaces:
        if it.state in _DOWN and (it.used or none_up):
            told = _SAYS["set_down" if it.was_set_down else "no_carrier"]
            yield told.found({"line": it.line[:300]}, name=it.name, state=it.state)


def _long(text: str) -> Iterator[_Interface]:
    for head, part in parts_of(_LONG, text):
        received = _P["received"].search(part)
        used = bool(_P["address"].search(part)) or bool(received and int(received[1][:15]))
        yield _Interface(head[1], head[3], tuple(head[2].split(",")), used, head[0].strip())


def _brief(text: str) -> Iterator[_Interface]:
    for row in _P["brief"].finditer(text):
        flags = tuple(row[3].split(",")) if row[3] else ()
        yield _Interface(row[1], row[2], flags, bool(row[4]), row[0].strip())


IP_LINK: Final = paste_format("ip link", _HEAD, read_links)
