"""Parses `lspci -vvv` to the same values as model/sysfs.py reads. Pure, and every text has a result.

The output may be with or without -D (domains), -n and -nn (numbers). If root did not run it, it has `<access denied>`
in place of what the kernel hides: then the registers are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.probes.pci.model.config_space import ACS_BITS, NO_ANSWER, NOT_READ, ConfigSpace, PciExpress
from laggard.probes.pci.model.tree import AMD, MELLANOX, NVIDIA, LinkState, PciDevice, PciTree

_HEAD: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)")
_NAMED: Final = re.compile(r"([^:\[]+?)(?: \[([0-9a-f]{4})\])?: (.*)")
_NUMBERED: Final = re.compile(r"(?:Class )?([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})")
_IDS: Final = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_NO_NAME: Final = re.compile(r"Device ([0-9a-f]{4})\b")
_REVISION: Final = re.compile(r" \((?:rev|prog-if) [^()]*\)| \[[0-9a-f]{4}:[0-9a-f]{4}\]")
_BUS: Final = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2})")
_NODE: Final = re.compile(r"NUMA node: (\d{1,4})")
_EXPRESS: Final = re.compile(r"Capabilities: \[[0-9a-f]+\] Express (?:\(v\d\) )?[A-Z]")
_CAPABLE: Final = re.compile(r"LnkCap:[^\n]*?Speed ([\d.]{1,5})GT/s, Width x(\d{1,2})")
_STATUS: Final = re.compile(r"LnkSta:[^\n]*?Speed ([\d.]{1,5})GT/s[^,\n]*, Width x(\d{1,2})")
_TARGET: Final = re.compile(r"LnkCtl2: Target Link Speed: ([\d.]{1,5})GT/s")
_REQUEST: Final = re.compile(r"MaxPayload (\d{2,4}) bytes, MaxReadReq (\d{2,4}) bytes")
_ACS: Final = re.compile(r"ACS(Cap|Ctl):\s*([A-Z][\w+ -]*)")
_ATS: Final = re.compile(r"ATSCtl:\s*Enable([+-])")
_EXTENDED: Final = re.compile(r"Capabilities: \[[0-9a-f]{3}( v\d+)?\]")

_CLASSES: Final = {
    "VGA compatible controller": 0x0300,
    "3D controller": 0x0302,
    "Display controller": 0x0380,
    "Processing accelerators": 0x1200,
    "Ethernet controller": 0x0200,
    "Infiniband controller": 0x0207,
    "InfiniBand controller": 0x0207,
    "PCI bridge": 0x0604,
    "Bridge": 0x0680,
    "Non-Volatile memory controller": 0x0108,
}
_VENDORS: Final = {"NVIDIA Corporation": NVIDIA, "Mellanox Technologies": MELLANOX, "Advanced Micro Devices": AMD}
_OTHER_CLASS: Final = 0xFFFF  # a class that no rule uses


def parse_lspci(text: str) -> PciTree:
    """Returns the devices in `text`; none where it is no such output."""
    found = [_device(head, body) for head, body in _blocks(text)]
    above = {f"{device.domain}:{bus}": device.address for device, bus in found if bus}
    parent_known = bool(above)
    devices = (device._replace(parent=_parent(device, above), parent_known=parent_known) for device, _ in found)
    return PciTree({device.address: device for device in devices})


def _parent(device: PciDevice, above: dict[str, str]) -> str | None:
    parent = above.get(device.address.rsplit(":", 1)[0])
    return None if parent == device.address else parent


def _blocks(text: str) -> Iterator[tuple[re.Match[str], str]]:
    head: re.Match[str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if line[:1].isspace():
            body.append(line)
        elif found := _HEAD.fullmatch(line.rstrip()):
            if head:
                yield head, "\n".join(body)
            head, body = found, []
    if head:
        yield head, "\n".join(body)


def _device(head: re.Match[str], body: str) -> tuple[PciDevice, str]:
    """Returns the device and the number of the bus behind it, empty where there is none."""
    pci_class, vendor, number, model = _identity(head[3])
    speed, width = _pair(_STATUS, body)
    max_speed, max_width = _pair(_CAPABLE, body)
    node, bus = _NODE.search(body), _BUS.search(body)
    device = PciDevice(
        address=f"{head[1] or '0000'}:{head[2]}",
        pci_class=pci_class,
        vendor=vendor,
        device=number,
        model=model,
        numa_node=int(node[1]) if node else None,
        link=LinkState(speed, int(width), max_speed, int(max_width)),
        config=_config(head[3], body),
        config_error="lspci was not run by root: it says <access denied>",
    )
    return device, bus[1] if bus else ""


def _identity(words: str) -> tuple[int | None, int | None, int | None, str]:
    """Returns class, vendor, device and the model's name."""
    if numbered := _NUMBERED.match(words):
        pci_class, vendor, number = (int(part, 16) for part in numbered.groups())
        return pci_class, vendor, number, ""
    named, ids = _NAMED.match(words), _IDS.search(words)
    if not named:
        return None, None, None, ""
    pci_class = int(named[2], 16) if named[2] else _CLASSES.get(named[1], _OTHER_CLASS)
    model = _REVISION.sub("", named[3])
    if ids:
        return pci_class, int(ids[1], 16), int(ids[2], 16), model
    vendor = next((number for name, number in _VENDORS.items() if model.startswith(name)), 0)
    unnamed = _NO_NAME.search(model)
    return pci_class, vendor, int(unnamed[1], 16) if unnamed else None, model


def _config(words: str, body: str) -> ConfigSpace:
    if "(rev ff)" in words or "!!! Unknown header type" in body:
        return NO_ANSWER
    if "<access denied>" in body or ("Capabilities:" not in body and "Status: Cap-" not in body):
        return NOT_READ
    express, acs, ats = _express(body), dict(_ACS.findall(body)), _ATS.search(body)
    shown = "Cap" in acs and "Ctl" in acs
    hidden = "Access Control Services" in body and not shown  # a single -v shows only the name
    return ConfigSpace(
        extended_known=not hidden and (express is None or bool(_EXTENDED.search(body))),
        express=express,
        acs=sum(bit for bit, name in ACS_BITS.items() if f"{name}+" in acs["Ctl"].split()) if shown else None,
        ats_enabled=None if ats is None else ats[1] == "+",
    )


def _express(body: str) -> PciExpress | None:
    request = _REQUEST.search(body)
    if not request or not _EXPRESS.search(body):
        return None
    speed, width = _pair(_STATUS, body)
    max_speed, max_width = _pair(_CAPABLE, body)
    target = _TARGET.search(body)
    return PciExpress(
        speed=speed,
        width=int(width),
        max_speed=max_speed,
        max_width=int(max_width),
        target_speed=_float(target[1]) if target else 0.0,
        payload_bytes=int(request[1]),
        read_request_bytes=int(request[2]),
    )


def _pair(pattern: re.Pattern[str], body: str) -> tuple[float, float]:
    found = pattern.search(body)
    return (_float(found[1]), _float(found[2])) if found else (0.0, 0.0)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # 1.2.3
        return 0.0
