"""The format `ibstat, ibv_devinfo, rdma link`: RDMA ports that are down or slower than their peers.

A port that nobody cabled is no fault. Peers tell which ports should be active: those of the same model and link layer
that are the same port of their card, since the second ports of cards are often left empty.

Sources: infiniband-diags (src/ibstat.c, scripts/ibstatus), libibverbs (examples/devinfo.c), iproute2 (rdma/link.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.pastes.section import Lack, Section, paste_format
from laggard.diagnose.rules import patterns, table
from laggard.kit.majority import majority
from laggard.kit.words import counted
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact
from laggard.probes.tables import section

_P: Final = patterns("paste_forms", "rdma_ports_")

MAX_PORTS: Final = 256
_SAYS: Final = table("pastes").sections
_MOST: Final = {device: float(most) for device, most in section("rdma", "most_gigabits").more.items()}
FELL_BACK: Final = 0.25
"""The share of what its adapter can below which a port of InfiniBand fell back: one of four lanes is left, or a speed
of two generations before. Slower switches are a generation behind."""


class PastedPort(NamedTuple):
    """A port; an empty text, 0 or None is what the tool does not print."""

    device: str
    number: int
    card: str = ""
    """What both ports of a card have in common: its system image GUID."""
    model: str = ""
    layer: str = ""
    state: str = ""
    """DOWN, INIT, ARMED or ACTIVE."""
    physical: str = ""
    """LINKUP, POLLING, DISABLED and others, in capitals without spaces."""
    gigabits: float = 0.0
    lanes: int = 0
    netdev: str = ""
    mtu: int = 0

    @property
    def name(self) -> str:
        return f"{self.device} port {self.number}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def ethernet(self) -> bool:
        return self.layer == "ETHERNET" or bool(self.netdev and not self.netdev.startswith("ib"))


def parse_ports(text: str) -> tuple[PastedPort, ...]:
    """Returns the ports, each once: of one that is printed again the last state counts."""
    lines = text.split("\n")
    ports = [*_blocks(lines), *filter(None, map(_from_line, lines))][:MAX_PORTS]
    layers = {port.model: port.layer for port in ports if port.layer}  # a cut text lacks the last one's
    whole = (port if port.layer else port._replace(layer=layers.get(port.model, "")) for port in ports)
    return tuple({(port.device, port.number): port for port in whole}.values())


def _from_line(line: str) -> PastedPort | None:
    if match := _P["netdev"].fullmatch(line.rstrip()):
        state = "ACTIVE" if match[4] == "Up" else "DOWN"
        return PastedPort(match[1], int(match[2]), netdev=match[3], state=state)
    if match := _P["link"].match(line):
        words = match[3].split()
        values = dict(zip(words[::2], words[1::2], strict=False))
        return PastedPort(
            match[1],
            int(match[2]),
            state=_state(values.get("state", "")),
            physical=_physical(values.get("physical_state", "")),
            netdev=values.get("netdev", ""),
            layer="INFINIBAND" if "sm_lid" in values else "",
        )
    return None


def _blocks(lines: list[str]) -> Iterator[PastedPort]:
    """Yields the ports of tools that print a block of fields for each device, and within it for each port."""
    device: dict[str, str] = {}
    port: dict[str, str] | None = None
    for line in lines:
        if head := _P["device"].match(line):
            if port is not None:
                yield _port(device, port)
            device = {"device": head[1] or head[2] or head[3]}
            port = {"number": head[4]} if head[4] else None
        elif number := _P["port"].fullmatch(line):
            if port is not None:
                yield _port(device, port)
            port = {"number": number[1] or number[2]} if device else None
        elif (field := _P["field"].fullmatch(line)) and device:
            (device if port is None else port).setdefault(field[1].lower().replace(" ", "_"), field[2])
    if port is not None:
        yield _port(device, port)


def _port(device: dict[str, str], port: dict[str, str]) -> PastedPort:
    rate = _P["rate"].search(port.get("rate", ""))
    lanes = _P["lanes"].search(port.get("rate", "") + port.get("active_width", ""))
    speed = _P["rate"].match(port.get("active_speed", ""))
    mtu = _P["rate"].match(port.get("active_mtu", ""))
    physical = port.get("physical_state") or port.get("phys_state") or ""
    return PastedPort(
        device["device"],
        int(port["number"][:6]),
        card=device.get("system_image_guid") or device.get("sys_image_guid") or "",
        model=device.get("ca_type") or device.get("vendor_part_id") or "",
        layer=(port.get("link_layer") or "").upper(),
        state=_state(port.get("state", "")),
        physical=_physical(physical),
        gigabits=float(rate[1][:12]) if rate else int(lanes[1]) * float(speed[1][:12]) if lanes and speed else 0.0,
        lanes=int(lanes[1]) if lanes else 0,
        mtu=int(float(mtu[1][:12])) if mtu else 0,
    )


def _state(words: str) -> str:
    found = re.search(r"ACTIVE|DOWN|INIT|ARMED", words.upper())
    return found[0] if found else words.upper()[:40]


def _physical(words: str) -> str:
    plain = re.sub(r"^\d+: |\s*\(\d+\)$|[ _]", "", words.upper())
    return plain[:40]


_MIN_PORTS_ALL_DOWN: Final = 4
"""The least ports of InfiniBand, all of them down, that are a fault: a machine has so many because jobs use them."""
_STATES: Final = {"INIT": "INIT (initializing: no subnet manager has activated it)", "DOWN": "down"}


def read(section: Section) -> Iterator[Finding | Fact | Lack]:
    ports = parse_ports(section.text)
    yield Fact("ports", {port.name: f"{port.state} {port.physical}".strip() for port in ports[:64]})
    if not ports:
        yield Lack("no port is in it: run ibstat without options")
    for port in ports:
        if not port.state:
            yield Lack(f"the state of {port.name} is not in it: paste all of the output")
            continue
        severity = severity_if_down(port, ports)
        if not port.active and severity is not None:
            yield _down(port, ports, severity)
    yield from _rates([port for port in ports if port.active])


def severity_if_down(port: PastedPort, ports: Sequence[PastedPort]) -> Severity | None:
    """Returns how severe it is that `port` is not active; None where nothing shows that it should be."""
    peers = _peers(port, ports)
    active = sum(peer.active for peer in peers)
    if port.physical in ("LINKUP", "") and port.state in ("INIT", "ARMED"):
        return Severity.CRITICAL
    if 2 * active > len(peers):
        return Severity.CRITICAL
    if len(ports) == 1:
        return Severity.WARNING  # somebody asked for this port alone
    if active == 0:
        alone = not any(other.active for other in ports)
        if not alone:
            return None
        return Severity.WARNING if len(ports) < _MIN_PORTS_ALL_DOWN or port.ethernet else Severity.CRITICAL
    return None if _every_second(ports) else Severity.WARNING


def _peers(port: PastedPort, ports: Sequence[PastedPort]) -> list[PastedPort]:
    place = _place(port, ports)
    kind = _kind(port)
    return [other for other in ports if _kind(other) == kind and _place(other, ports) == place]


def _kind(port: PastedPort) -> tuple[str, str, bool]:
    return (port.model or re.sub(r"\d+", "", port.device), port.layer, port.ethernet)


def _place(port: PastedPort, ports: Sequence[PastedPort]) -> int:
    """Returns the number of ports of the same card that come before this one."""
    if not port.card:
        return port.number - 1
    return sum(other.card == port.card for other in ports[: ports.index(port)])


def _every_second(ports: Sequence[PastedPort]) -> bool:
    """Returns whether the first port of each card is active and the second is not, where nothing names the cards."""
    return len(ports) % 2 == 0 and all(port.active == (number % 2 == 0) for number, port in enumerate(ports))


def _down(port: PastedPort, ports: Sequence[PastedPort], severity: Severity) -> Finding:
    peers = _peers(port, ports)
    active = sum(peer.active for peer in peers)
    no_manager = port.state in ("INIT", "ARMED") and not port.ethernet
    return _SAYS["no_manager" if no_manager else "disabled" if port.physical == "DISABLED" else "port_down"].found(
        {"link_layer": port.layer or None, "netdev": port.netdev or None, "model": port.model or None},
        severity,
        port=port.name,
        device=port.device,
        state=_STATES.get(port.state, port.state),
        link=f", its link {port.physical.lower()}" if port.physical else "",
        told=f"; {active} of {counted(len(peers), 'such port')} are active" if active else "",
    )


def _rates(active: Sequence[PastedPort]) -> Iterator[Finding]:
    for port in active:
        peers = [peer for peer in active if _kind(peer) == _kind(port)]
        for quantity, value, usual in (
            ("Gb/s", port.gigabits, majority([peer.gigabits for peer in peers], 3)),
            ("lanes", port.lanes, majority([peer.lanes for peer in peers], 3)),
        ):
            if value and usual and value < usual:
                severity = Severity.CRITICAL if port.model or quantity == "lanes" else Severity.WARNING
                yield _slow(port, f"runs at {value:g} {quantity}, its peers at {usual:g}", len(peers), severity)
                break
        else:
            yield from _fell_back(port)
            yield from _packets(port, majority([peer.mtu for peer in peers], 3))


def _fell_back(port: PastedPort) -> Iterator[Finding]:
    """By its adapter; without its type, by the slowest."""
    number = port.model.removeprefix("MT")
    most = _MOST.get(number) if port.model else min(_MOST.values())
    if most and not port.ethernet and 0 < port.gigabits < FELL_BACK * most:
        of = f"its adapter ({port.model})" if port.model else "any adapter of these years"
        yield _slow(port, f"runs at {port.gigabits:g} Gb/s, {of} can {most:g}", 0, Severity.CRITICAL)


def _packets(port: PastedPort, usual: int | None) -> Iterator[Finding]:
    if port.mtu and usual and port.mtu < usual:
        yield _SAYS["mtu"].found(
            {"active_mtu": port.mtu, "peers_mtu": usual}, port=port.name, mtu=port.mtu, usual=usual
        )


def _slow(port: PastedPort, told: str, peers: int, severity: Severity) -> Finding:
    evidence = {"rate_gigabits": port.gigabits, "lanes": port.lanes or None, "peers": peers}
    return _SAYS["port_slow"].found(evidence, severity, port=port.name, device=port.device, told=told)


RDMA_PORTS: Final = paste_format("ibstat, ibv_devinfo, rdma link", _P["head"], read)
