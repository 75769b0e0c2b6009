"""The formats `ethtool DEV` and `ethtool --show-fec`: ports without a link or slower than both ends can, and error
correction that differs between ends.

Source: ethtool (netlink/settings.c, netlink/fec.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import Items, Lack, paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_SETTINGS: Final = re.compile(r"^Settings for ([\w.@-]+):\s*$", re.MULTILINE)
_FEC: Final = re.compile(r"^FEC parameters for ([\w.@-]+):\s*$", re.MULTILINE)
_SPEED: Final = re.compile(r"^[^\S\n]*Speed: (\d{1,9})Mb/s", re.MULTILINE)
_LINK: Final = re.compile(r"^[^\S\n]*Link detected: (yes|no)(?: \(([^)\n]{1,80})\))?", re.MULTILINE)
_MODES: Final = re.compile(r"(\d{4,7})base")
_FIX: Final = "Clean and reseat the fibre and the transceiver; swap them one by one, with the other end's."


class _Settings(NamedTuple):
    device: str
    speed: int
    link: bool | None
    reason: str
    advertised: frozenset[int]
    partner: frozenset[int]
    supported: frozenset[int]


def read_settings(section: Section) -> Items:
    ports = [_settings(match[1], part) for match, part in parts_of(_SETTINGS, section.text)]
    yield Fact("speeds_megabits", {port.device: port.speed for port in ports})
    for port in ports:
        if port.link is False:
            yield from _without_link(port, ports)
        elif port.speed:
            yield from _slow(port, ports)
        elif port.link is None:
            yield Lack(f"no link and no speed of {port.device} is in it: run ethtool {port.device} as root")


def _settings(device: str, part: str) -> _Settings:
    speed, link = _SPEED.search(part), _LINK.search(part)
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
    return frozenset(int(speed) for speed in _MODES.findall(found[1])) if found else frozenset()


def _without_link(port: _Settings, ports: Sequence[_Settings]) -> Iterator[Finding]:
    """Judges by the peers: a port without a link among others without one is left empty."""
    peers = [other for other in ports if other.supported == port.supported and other is not port]
    up = sum(bool(other.link) for other in peers)
    if peers and 2 * up <= len(peers):
        return
    why = f" ({port.reason})" if port.reason else ""
    severity = Severity.CRITICAL if up else Severity.WARNING
    evidence = {"line": "Link detected: no", "reason": port.reason or None, "peers_with_link": up}
    yield link_finding("RDMA_NETDEV_DOWN", port.device, f"has no link{why}", severity, evidence)


def _slow(port: _Settings, ports: Sequence[_Settings]) -> Iterator[Finding]:
    both = port.advertised & port.partner
    usual = [other.speed for other in ports if other.supported == port.supported and other.speed > port.speed]
    if both and port.speed < max(both):
        told = f"both ends advertise {max(both)} Mb/s"
    elif port.advertised and port.speed < min(port.advertised):
        told = f"it advertises {max(port.advertised)} Mb/s alone"
    elif 2 * len(usual) > len(ports):
        told = f"most others of its kind run at {max(usual)} Mb/s"
    else:
        return
    summary = f"runs at a speed of {port.speed} Mb/s, and {told}"
    yield link_finding("RDMA_RATE_LOW", port.device, summary, Severity.WARNING, {"speed_megabits": port.speed})


def compare_fec(sections: Sequence[Section]) -> Items:
    """Compares ports of all hosts in the text: a port without error correction among ports that have it."""
    found: list[tuple[str, str, str]] = []
    for section in sections:
        for match, part in parts_of(_FEC, section.text):
            active = re.search(r"^Active FEC encodings?: (.{1,80})$", part, re.MULTILINE)
            found.append((section.host, match[1], active[1].strip() if active else ""))
    others = {active for _, _, active in found if active and active.lower() not in ("off", "none", "auto")}
    for host, device, encoding in found:
        if others and encoding.lower() in ("off", "none"):
            summary = f"has no error correction (FEC {encoding}), others have {', '.join(sorted(others))}"
            evidence = {"host": host or None, "fec": encoding}
            fix = "Set the same FEC on both ends: `ethtool --set-fec DEV encoding rs` (or auto), and the switch's port."
            yield link_finding("RDMA_NETDEV_DOWN", device, summary, Severity.WARNING, evidence, fix)


def read_fec(section: Section) -> Items:
    yield Fact("fec", [match[1] for match, _ in parts_of(_FEC, section.text)])


def link_finding(
    code: str, device: str, summary: str, severity: Severity, evidence: Mapping[str, object], fix: str = _FIX
) -> Finding:
    commands = ("ethtool DEV", "ethtool --show-fec DEV", "ethtool -m DEV")
    return finding(code, device, summary, severity=severity, evidence=evidence, fix=fix, commands=commands)


ETHTOOL: Final = paste_format("ethtool", _SETTINGS, read_settings)
ETHTOOL_FEC: Final = paste_format("ethtool --show-fec", _FEC, read_fec, compare_fec)
