"""NUMA_MISMATCH, IOMMU_ENABLED and PCIE_MAX_READ_REQUEST_LOW: what firmware and kernel have set for GPUs and NICs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine, parse_cpu_list
from laggard.probes.pci.model.config_space import PciExpress
from laggard.probes.pci.model.sysfs import (
    EndpointThresholds,
    VirtualThresholds,
    read_tree,
    select_endpoints,
    with_config,
    with_numa_nodes,
)
from laggard.probes.pci.model.tree import PciDevice, PciTree, share_root_port
from laggard.probes.probe import KERNEL, PCI, Count, Fact, NotNegative, Probe, say

# NUMA_MISMATCH: GPUs whose traffic crosses between processors although the machine has NICs to avoid it.

_ONLINE: Final = "/sys/devices/system/node/online"


def check_numa(host: Host, thresholds: EndpointThresholds) -> Iterator[Finding | Fact]:
    nodes = parse_cpu_list(host.read(_ONLINE), _ONLINE)
    tree = read_tree(host)
    ends = select_endpoints(tree, thresholds.endpoints)
    if len(nodes) < 2:
        raise NotApplicable("the machine has one NUMA node")
    devices = tuple(with_numa_nodes(host, ends))
    yield Fact("nodes", {device.address: device.numa_node for device in devices})
    yield from judge_numa(tree, devices)
    unknown = [device.address for device in devices if device.numa_node is None]
    if unknown:
        raise Unknown(f"the NUMA node of {unknown[0]} and {len(unknown) - 1} others cannot be read")


def judge_numa(tree: PciTree, devices: tuple[PciDevice, ...]) -> Iterator[Finding]:
    """Judges a machine with more than one NUMA node. Pure."""
    for device in devices:
        if device.numa_node == -1:
            yield say("pci", "numa_unknown", device.address, {"numa_node": -1})
    gpus = [device for device in devices if device.is_gpu and device.numa_node not in (None, -1)]
    nics = [device for device in devices if device.is_rdma_nic and device.numa_node not in (None, -1)]
    for gpu in gpus:
        yield from _contradiction(tree, gpu, nics)
    yield from _distance(gpus, nics)


def _contradiction(tree: PciTree, gpu: PciDevice, nics: Iterable[PciDevice]) -> Iterator[Finding]:
    """Finds NICs behind the GPU's root port with another NUMA node: a root port belongs to one processor."""
    for nic in nics:
        if nic.numa_node != gpu.numa_node and share_root_port(tree, gpu.address, nic.address):
            evidence = {"numa_node": gpu.numa_node, "nic": nic.address, "nic_numa_node": nic.numa_node}
            told = {"node": gpu.numa_node, "nic": nic.address, "other": nic.numa_node}
            yield say("pci", "numa_contradiction", gpu.address, evidence, **told)


def _distance(gpus: Iterable[PciDevice], nics: Iterable[PciDevice]) -> Iterator[Finding]:
    """Finds GPUs on a node without a NIC, while another node has several NICs of one model."""
    with_nic = {nic.numa_node for nic in nics}
    models = Counter((nic.numa_node, nic.vendor, nic.device) for nic in nics)
    spare = sorted({node for (node, *_), count in models.items() if count > 1 and node is not None})
    for gpu in gpus:
        if spare and gpu.numa_node not in with_nic:
            evidence = {"numa_node": gpu.numa_node, "nics": {nic.address: nic.numa_node for nic in nics}}
            yield say("pci", "numa_distance", gpu.address, evidence, node=gpu.numa_node, other=spare[0])


# IOMMU_ENABLED: GPUs or NICs of which the IOMMU translates every memory access.

_GROUPS: Final = "/sys/kernel/iommu_groups"
_TRANSLATING: Final = ("DMA", "DMA-FQ", "DMA-SVA")
_PARAMETERS: Final = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict")


def check_iommu(host: Host, thresholds: EndpointThresholds) -> Iterator[Finding | Fact]:
    ends = select_endpoints(read_tree(host), thresholds.endpoints)
    units = host.entries("/sys/class/iommu")
    parameters = _parameters(host)
    yield Fact("units", len(units))
    yield Fact("parameters", parameters)
    if not units:
        return  # no IOMMU is in use: nothing translates
    modes = {end.address: _mode(host, end.folder) for end in ends}
    yield Fact("modes", modes)
    translating = sorted(address for address, mode in modes.items() if mode in _TRANSLATING)
    if translating:
        yield _iommu_finding(translating, modes, parameters, is_virtual_machine(host))
    unknown = [address for address, mode in modes.items() if mode == "unknown"]
    if unknown:
        raise Unknown(f"how the IOMMU treats {unknown[0]} and {len(unknown) - 1} others cannot be read")


def _iommu_finding(
    translating: list[str], modes: Mapping[str, str], parameters: Mapping[str, str], virtual: bool | None
) -> Finding:
    """Makes one finding for all devices. The cost: traffic between a GPU and a NIC needs an entry in the IOMMU's cache
    for each page that it touches."""
    where = " of this virtual machine" if virtual else ""
    evidence = {"devices": translating, "modes": dict(modes), "kernel_parameters": dict(parameters)}
    return say("pci", "iommu", "iommu", evidence, count=len(translating), where=where)


def _mode(host: Host, folder: str) -> str:
    """Returns the type of the device's IOMMU group: `identity` is passthrough; `none` where the device is in no group
    and behind no IOMMU; `unknown` where it cannot be read."""
    try:
        group = host.read_link(f"{folder}/iommu_group").rsplit("/", 1)[-1]
    except NotFound:
        return "none"
    except Unknown:
        return "unknown"
    return host.text(f"{_GROUPS}/{group}/type") or "unknown"


def _parameters(host: Host) -> dict[str, str]:
    """Returns the kernel parameters about the IOMMU; evidence only."""
    pairs = (word.partition("=") for word in host.text("/proc/cmdline").split())
    return {name: value for name, _, value in pairs if name in _PARAMETERS}


# PCIE_MAX_READ_REQUEST_LOW: a GPU or RDMA NIC that reads memory in requests too small for its link.

_MIN_PEERS = 3


class ReadRequestThresholds(VirtualThresholds, frozen=True):
    least_bytes: Count = 512
    """Less is a warning; the kernel's `pci=pcie_bus_perf` can leave it behind. 512 is the value at reset. NVIDIA's
    guides ask for 4096 for ConnectX."""

    fast_least_bytes: Count = 4096
    """The least size for a NIC whose link carries 25 GB/s or more (16 GT/s x16): less is a note."""

    fast_gigatransfers: NotNegative = 256.0
    """GT/s times lanes from which a link is fast."""


def check_read_requests(host: Host, thresholds: ReadRequestThresholds) -> Iterator[Finding | Fact]:
    # Without virtual functions, whose size is that of the physical one and reads as 128 (SR-IOV 3.5.4).
    ends = [end for end in select_endpoints(read_tree(host), thresholds.endpoints) if not end.virtual_function]
    devices = tuple(with_config(host, ends))
    yield Fact(
        "read_request_bytes",
        {device.address: device.config.express and device.config.express.read_request_bytes for device in devices},
    )
    if thresholds.is_virtual_machine(host):
        raise NotApplicable("a virtual machine: what it reads of these registers is its hypervisor's")
    yield from judge_read_requests(devices, thresholds)
    unknown = [device for device in devices if not device.config.express and not device.config.standard_known]
    if unknown:
        reason = unknown[0].config_error or "the kernel shows it only to root, or the device does not answer"
        raise Unknown(f"the read request size of {len(unknown)} devices is unknown: {reason}")


def judge_read_requests(devices: Iterable[PciDevice], thresholds: ReadRequestThresholds) -> Iterator[Finding]:
    """Judges devices of sysfs or of `lspci`. Pure."""
    known = [(device, device.config.express) for device in devices if device.config.express]
    for device, express in known:
        size, fast = express.read_request_bytes, express.speed * express.width >= thresholds.fast_gigatransfers
        same_model = [other.read_request_bytes for peer, other in known if peer.hardware == device.hardware]
        peers = majority(same_model, _MIN_PEERS)
        if size < thresholds.least_bytes:
            yield _small_finding(device, express, thresholds.least_bytes, "below the value at reset", Severity.WARNING)
        elif peers is not None and size < peers:
            yield _small_finding(device, express, peers, "and most of its peers for more", Severity.WARNING)
        elif device.is_rdma_nic and size < thresholds.fast_least_bytes and fast:
            reason = "its vendor's guides advise more"
            yield _small_finding(device, express, thresholds.fast_least_bytes, reason, Severity.INFO)


def _small_finding(device: PciDevice, express: PciExpress, expected: int, reason: str, severity: Severity) -> Finding:
    size = express.read_request_bytes
    evidence = {"expected_bytes": expected, "max_payload_bytes": express.payload_bytes}
    told = {"size": size, "reason": reason, "address": device.address}
    return say("pci", "read_request", device.address, evidence, severity, **told)


PROBES: Final = (
    Probe("pcie_requests", check_read_requests, ReadRequestThresholds(), group=PCI),
    Probe("iommu", check_iommu, EndpointThresholds(), group=KERNEL),
    Probe("numa", check_numa, EndpointThresholds(), group=KERNEL),
)
