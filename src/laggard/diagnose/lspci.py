"""The format `lspci`: `lspci -vvv`, judged for ACS, degraded links, small read requests and NUMA nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.smi_table import SAYS
from laggard.diagnose.lspci_output import parse_lspci
from laggard.diagnose.pastes.section import on_host, only_host
from laggard.diagnose.rules import patterns
from laggard.model import Finding
from laggard.probes.pci import acs, link, platform
from laggard.probes.pci.acs import peer_paths, ports_without_acs_reading
from laggard.probes.pci.link import as_seen_by_a_guest, links_to_root, unjudged_links
from laggard.probes.pci.model.config_space import REQUEST_REDIRECT
from laggard.probes.pci.model.tree import PciTree

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
