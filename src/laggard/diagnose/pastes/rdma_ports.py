"""The format `ibstat, ibv_devinfo, rdma link`: RDMA ports that are down or slower than their peers.

A port that nobody cabled is no fault. Peers tell which ports should be active: those of the same model and link layer
that are the same port of their card, since the second ports of cards are often left empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.diagnose.pastes.paste_format import Lack, paste_format
from laggard.diagnose.pastes.rdma_port import PastedPort, parse_ports
from laggard.diagnose.pastes.section import Section
from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding
from laggard.text.words import counted

_HEAD: Final = re.compile(
    r"^[^\S\n]*(?:CA:? '[\w.-]+'\s*$|hca_id:\s*\w|Infiniband device '[\w.-]+' port \d+ status:"
    r"|(?:link |\d+/\d+: )[\w.-]+/\d+:? .*\bstate \w+|[\w.-]+ port \d+ ==> \S+ \(\w+\))",
    re.MULTILINE,
)
_MIN_PORTS_ALL_DOWN: Final = 4
"""The least ports of InfiniBand, all of them down, that are a fault: a machine has so many because jobs use them."""
_STATES: Final = {"INIT": "INIT (initializing: no subnet manager has activated it)", "DOWN": "down"}
_SWAP: Final = "Check the cable, the transceiver and the switch's port; to find which it is, swap the cable."


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
    link = f", its link {port.physical.lower()}" if port.physical else ""
    active = sum(peer.active for peer in peers)
    told = f"; {active} of {counted(len(peers), 'such port')} are active" if active else ""
    return finding(
        "RDMA_PORT_DOWN",
        port.name,
        f"is {_STATES.get(port.state, port.state)}{link}{told}",
        severity=severity,
        evidence={"link_layer": port.layer or None, "netdev": port.netdev or None, "model": port.model or None},
        fix=_fix(port),
        commands=(f"ibstat {port.device}", f"mlxlink -d {port.device} -m -c"),
    )


def _fix(port: PastedPort) -> str:
    if port.state in ("INIT", "ARMED") and not port.ethernet:
        return "The cable is good, and no subnet manager (SM) activated the port: check it (sminfo) and the switch."
    if port.physical == "DISABLED":
        return (
            "Somebody or something switched the port off: set the network device up (`ip link set DEV up`) or enable "
            "the port (`ibportstate LID PORT enable`); look for the reason in the kernel's log."
        )
    return _SWAP


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
            yield from _packets(port, majority([peer.mtu for peer in peers], 3))


def _packets(port: PastedPort, usual: int | None) -> Iterator[Finding]:
    if port.mtu and usual and port.mtu < usual:
        yield finding(
            "RDMA_MTU_LOW",
            port.name,
            f"sends packets of {port.mtu} bytes, its peers of {usual}",
            evidence={"active_mtu": port.mtu, "peers_mtu": usual},
            fix="Give its network device the MTU of the others (9000 for RDMA packets of 4096 bytes).",
            commands=("ip link show",),
        )


def _slow(port: PastedPort, summary: str, peers: int, severity: Severity) -> Finding:
    return finding(
        "RDMA_RATE_LOW",
        port.name,
        summary,
        severity=severity,
        evidence={"rate_gigabits": port.gigabits, "lanes": port.lanes or None, "peers": peers},
        fix="The link has trained down: reseat or swap the cable, then the transceiver, then the switch's port.",
        commands=(f"mlxlink -d {port.device} -m -c",),
    )


RDMA_PORTS: Final = paste_format("ibstat, ibv_devinfo, rdma link", _HEAD, read)
