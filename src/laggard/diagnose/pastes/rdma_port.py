"""RDMA ports as ibstat, ibstatus, ibv_devinfo, `rdma link` and ibdev2netdev print them, to values. Pure.

Sources: infiniband-diags (src/ibstat.c, scripts/ibstatus), libibverbs (examples/devinfo.c), iproute2 (rdma/link.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_PORTS: Final = 256

_DEVICE: Final = re.compile(
    r"\s*(?:CA:? '([\w.-]+)'|hca_id:\s*([\w.-]+)|Infiniband device '([\w.-]+)' port (\d+) status:)"
)
_PORT: Final = re.compile(r"\s*(?:Port (\d+):|port:\s+(\d+))\s*")
_FIELD: Final = re.compile(r"\s*([A-Za-z][\w ]{1,40}?):\s*(.*?)\s*")
_LINK: Final = re.compile(r"\s*(?:link |\d+/\d+: )([\w.-]+)/(\d+):? (.*\bstate \w+.*)")
_NETDEV: Final = re.compile(r"\s*([\w.-]+) port (\d+) ==> (\S+) \((\w+)\)")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)")
_LANES: Final = re.compile(r"\b(\d{1,2})X\b")


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
    if match := _NETDEV.fullmatch(line.rstrip()):
        state = "ACTIVE" if match[4] == "Up" else "DOWN"
        return PastedPort(match[1], int(match[2]), netdev=match[3], state=state)
    if match := _LINK.match(line):
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
        if head := _DEVICE.match(line):
            if port is not None:
                yield _port(device, port)
            device = {"device": head[1] or head[2] or head[3]}
            port = {"number": head[4]} if head[4] else None
        elif number := _PORT.fullmatch(line):
            if port is not None:
                yield _port(device, port)
            port = {"number": number[1] or number[2]} if device else None
        elif (field := _FIELD.fullmatch(line)) and device:
            (device if port is None else port).setdefault(field[1].lower().replace(" ", "_"), field[2])
    if port is not None:
        yield _port(device, port)


def _port(device: dict[str, str], port: dict[str, str]) -> PastedPort:
    rate = _RATE.search(port.get("rate", ""))
    lanes = _LANES.search(port.get("rate", "") + port.get("active_width", ""))
    mtu = _RATE.match(port.get("active_mtu", ""))
    physical = port.get("physical_state") or port.get("phys_state") or ""
    return PastedPort(
        device["device"],
        int(port["number"][:6]),
        card=device.get("system_image_guid") or device.get("sys_image_guid") or "",
        model=device.get("ca_type") or device.get("vendor_part_id") or "",
        layer=(port.get("link_layer") or "").upper(),
        state=_state(port.get("state", "")),
        physical=_physical(physical),
        gigabits=float(rate[1][:12]) if rate else 0.0,
        lanes=int(lanes[1]) if lanes else 0,
        mtu=int(float(mtu[1][:12])) if mtu else 0,
    )


def _state(words: str) -> str:
    found = re.search(r"ACTIVE|DOWN|INIT|ARMED", words.upper())
    return found[0] if found else words.upper()[:40]


def _physical(words: str) -> str:
    plain = re.sub(r"^\d+: |\s*\(\d+\)$|[ _]", "", words.upper())
    return plain[:40]
