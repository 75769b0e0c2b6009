"""The format `NCCL topology`: the XML that NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE name. A GPU or NIC whose PCIe
link is narrower or slower than its peers', or that has fewer NVLinks, is told.

Source: NCCL (src/graph/xml.cc, topo.cc). The text is read by patterns: it may be cut, and no entity is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.diagnose.pastes.paste_format import Lack, paste_format
from laggard.diagnose.pastes.section import Section
from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(r"<system version=\"\d+\"|<graphs version=\"\d+\"")
_TAG: Final = re.compile(r"<(pci|gpu|net|nvlink)\b([^<>]{0,2000})>")
_ATTRIBUTE: Final = re.compile(r"\b(\w+)=\"([^\"]{0,200})\"")
_MIN_PEERS: Final = 3
MAX_DEVICES: Final = 1024


class _Device(NamedTuple):
    address: str
    model: str
    pci_class: str
    speed: float
    width: int
    nvlinks: int = 0


def read(section: Section) -> Iterator[Finding | Fact | Lack]:
    devices = _devices(section.text)
    yield Fact("devices", len(devices))
    if not devices:
        yield Lack("a graph shows no links: give the file that NCCL_TOPO_DUMP_FILE names too")
    for device in devices:
        peers = [other for other in devices if (other.model, other.pci_class) == (device.model, device.pci_class)]
        yield from _judge(device, peers)


def _devices(text: str) -> list[_Device]:
    found: list[_Device] = []
    for match in _TAG.finditer(text):
        values = dict(_ATTRIBUTE.findall(match[2]))
        if match[1] == "pci" and "busid" in values and len(found) < MAX_DEVICES:
            speed = re.match(r"\d{1,4}(?:\.\d{1,3})?", values.get("link_speed", ""))
            width = values.get("link_width", "")
            model = f"{values.get('vendor', '')}:{values.get('device', '')}"
            lanes = int(width) if width.isdecimal() and len(width) < 4 else 0
            found.append(
                _Device(values["busid"], model, values.get("class", ""), float(speed[0]) if speed else 0.0, lanes)
            )
        elif match[1] == "nvlink" and found and values.get("count", "").isdecimal():
            found[-1] = found[-1]._replace(nvlinks=found[-1].nvlinks + int(values["count"][:4]))
    return found


def _judge(device: _Device, peers: list[_Device]) -> Iterator[Finding]:
    """Compares with peers of the same model. The speed of GPUs is left alone: idle ones lower it."""
    width = majority([peer.width for peer in peers], _MIN_PEERS) or 0
    speed = majority([peer.speed for peer in peers], _MIN_PEERS) or 0.0
    links = majority([peer.nvlinks for peer in peers], _MIN_PEERS) or 0
    is_gpu = device.pci_class.startswith("0x03")
    if 0 < device.width < width or (0 < device.speed < speed and not is_gpu):
        yield finding(
            "PCIE_LINK_DEGRADED",
            device.address,
            f"has a PCIe link of x{device.width} at {device.speed:.1f} GT/s, its peers x{width} at {speed:.1f} GT/s",
            severity=Severity.WARNING,
            evidence={"link_width": device.width, "link_speed": device.speed, "peers": len(peers)},
            fix="Reseat the card, its riser or its cable; NCCL uses fewer channels for all ranks because of it.",
            commands=(f"lspci -vvv -s {device.address}",),
        )
    if device.nvlinks < links:
        yield finding(
            "NVLINK_DOWN",
            device.address,
            f"has {device.nvlinks} NVLinks, its peers {links}",
            severity=Severity.CRITICAL if is_gpu else Severity.WARNING,
            evidence={"nvlinks": device.nvlinks, "peers_nvlinks": links},
            fix="Look at its links, and reset the GPU; where they stay down, have it replaced.",
            commands=("nvidia-smi nvlink -s", "nvidia-smi topo -m"),
        )


NCCL_TOPOLOGY: Final = paste_format("NCCL topology", _HEAD, read)
