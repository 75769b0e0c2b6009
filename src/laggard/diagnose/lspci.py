"""The format `lspci`: `lspci -vvv`, judged for ACS, degraded links, small read requests and NUMA nodes, by the values
that the probes read from sysfs. Without root it has `<access denied>` in place of registers, which are then unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.pastes.section import on_host, only_host
from laggard.diagnose.rules import patterns
from laggard.model import Finding
from laggard.probes.pci import acs, link, platform
from laggard.probes.pci.acs import peer_paths, ports_without_acs_reading
from laggard.probes.pci.link import as_seen_by_a_guest, links_to_root, unjudged_links
from laggard.probes.pci.model.config_space import (
    ACS_BITS,
    NO_ANSWER,
    NOT_READ,
    REQUEST_REDIRECT,
    ConfigSpace,
    PciExpress,
)
from laggard.probes.pci.model.tree import AMD, MELLANOX, NVIDIA, LinkState, PciDevice, PciTree

_P: Final = patterns("kernel_forms")

_FULL_BOARDS: Final = (4, 8)


def judge_pci_tree(tree: PciTree, virtual: bool | None = None) -> Iterator[Finding]:
    """Judges links, read requests, ACS and NUMA nodes. `virtual`: of a virtual machine; None: not known."""
    ends = tree.endpoints()
    links = links_to_root(tree, [end for end in ends if not end.virtual_function])
    yield from link.judge(as_seen_by_a_guest(links) if virtual else links, link.PcieLinkThresholds())
    yield from platform.judge_read_requests(ends, platform.ReadRequestThresholds())
    yield from acs.judge(tree, peer_paths(tree, ends), virtual)
    if len({device.numa_node for device in tree if device.numa_node is not None}) > 1:
        yield from platform.judge_numa(tree, ends)


def judge_dead_devices(tree: PciTree, text: str) -> Iterator[Finding]:
    """Yields a finding for each GPU and NIC whose registers read as ones: `rev ff`. It is off the bus."""
    dead = {_full(match[1]) for match in _P["dead"].finditer(text)}
    for device in tree:
        silent = device.address in dead or not device.config.responds
        if silent and (device.is_gpu or device.is_rdma_nic):
            row = SAYS["off_the_bus"]
            row = row if device.is_gpu else row._replace(code="RDMA_DEVICE_MISSING")
            yield row.found({"model": device.model or None}, device=device.address)


def judge_counts(tree: PciTree) -> Iterator[Finding]:
    """Yields a finding where boards that hold four or eight modules show one less."""
    counts = Counter(device.model for device in tree if device.is_gpu and "SXM" in device.model)
    for model, count in counts.items():
        if count + 1 in _FULL_BOARDS:
            yield SAYS["few_modules"].found({"gpus": count}, model=model, count=count, board=count + 1)


def judge_bridges_alone(tree: PciTree) -> Iterator[Finding]:
    """Judges ACS where the text shows bridges and not what is behind them: whether it harms, the whole tree tells."""
    if tree.endpoints() and any(device.parent for device in tree.endpoints()):
        return
    acs_of = {device.address: device.config.acs for device in tree if device.config.acs}
    redirecting = [address for address, acs in acs_of.items() if acs & REQUEST_REDIRECT]
    if redirecting:
        more = f" and {len(redirecting) - 1} more bridges" if len(redirecting) > 1 else ""
        yield SAYS["acs"].found({"bridges": redirecting[:32]}, bridges=redirecting[0] + more)


def _full(address: str) -> str:
    return address if address.count(":") > 1 else f"0000:{address}"


def unjudged_parts(tree: PciTree) -> Iterator[str]:
    """Yields a reason for each part that could not be judged, also for a text without devices."""
    ends = tree.endpoints()
    if not tree.devices:
        yield "no PCI device is in it"
    elif not ends:
        yield f"none of the {len(tree.devices)} PCI devices is a GPU or an RDMA NIC"
    elif not ends[0].parent_known:
        yield "no bridge shows the buses behind it: run lspci with -vvv"
    if ports := ports_without_acs_reading(tree, peer_paths(tree, ends)):
        yield f"ACS of {len(ports)} bridges, {ports[0]} for one, is not shown: run lspci -vvv as root"
    if links := unjudged_links(links_to_root(tree, ends)):
        yield f"{len(links)} links, that of {links[0]} for one, show no speed and width: run lspci -vvv as root"


_MIN_DEVICES = 2  # one line that begins like a PCI address may be in any file


def recognise(content: FileContent) -> bool:
    return len(_P["device"].findall(content.text[: 1 << 18])) >= _MIN_DEVICES


def read_hardware(content: FileContent) -> KnownHardware:
    tree = parse_lspci(content.text)
    return KnownHardware(sum(device.is_gpu for device in tree), any(device.is_rdma_nic for device in tree))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Judges the tree as that of a physical machine, where nothing in the text shows a virtual one."""
    tree = parse_lspci(content.text)
    ends = tree.endpoints()
    virtual = bool(_P["virtual"].search(content.text))
    facts = {
        "devices": len(tree.devices),
        "gpus": [device.address for device in ends if device.is_gpu],
        "rdma_nics": [device.address for device in ends if device.is_rdma_nic],
        "bridges_between": sorted({port for path in peer_paths(tree, ends) for port in path.ports}),
        "virtual": virtual,
    }
    findings = (
        *judge_dead_devices(tree, content.text),
        *judge_counts(tree),
        *judge_pci_tree(tree, virtual),
        *(() if virtual else judge_bridges_alone(tree)),
    )
    lost = any(found.code == "GPU_LOST" for found in findings)
    host = only_host(content.text)
    findings = tuple(on_host(found, host) for found in findings)
    return FileJudgement(findings, facts, "" if lost else "; ".join(unjudged_parts(tree)))


LSPCI = FileFormat("lspci", recognise, judge, read_hardware, shares=True, takes=lambda line: line[:1] in " \t")


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
