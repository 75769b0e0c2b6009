"""NUMA_MISMATCH: GPUs whose traffic crosses between processors although the machine has NICs to avoid it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import parse_cpu_list
from laggard.probes.pci.model.sysfs import EndpointThresholds, read_tree, select_endpoints, with_numa_nodes
from laggard.probes.pci.model.tree import PciDevice, PciTree, share_root_port
from laggard.probes.probe import KERNEL, Fact, Probe, finding

_ONLINE: Final = "/sys/devices/system/node/online"
_FIX_UNKNOWN: Final = (
    "The firmware does not report to which processor the device is attached, so that nothing can be placed near it: "
    "update the firmware. In a virtual machine let the hypervisor report it (QEMU's pxb-pcie with numa_node)."
)
_FIX_CONTRADICTION: Final = "The firmware reports a wrong processor: update it."
_FIX_DISTANCE: Final = "Move a NIC to a slot of the processor that has GPUs and no NIC."


def check(host: Host, thresholds: EndpointThresholds) -> Iterator[Finding | Fact]:
    nodes = parse_cpu_list(host.read(_ONLINE), _ONLINE)
    tree = read_tree(host)
    ends = select_endpoints(tree, thresholds.endpoints)
    if len(nodes) < 2:
        raise NotApplicable("the machine has one NUMA node")
    devices = tuple(with_numa_nodes(host, ends))
    yield Fact("nodes", {device.address: device.numa_node for device in devices})
    yield from judge(tree, devices)
    unknown = [device.address for device in devices if device.numa_node is None]
    if unknown:
        raise Unknown(f"the NUMA node of {unknown[0]} and {len(unknown) - 1} others cannot be read")


def judge(tree: PciTree, devices: tuple[PciDevice, ...]) -> Iterator[Finding]:
    """Judges a machine with more than one NUMA node. Pure."""
    for device in devices:
        if device.numa_node == -1:
            evidence = {"numa_node": -1}
            summary = "is on no NUMA node, as far as the kernel knows"
            yield finding("NUMA_MISMATCH", device.address, summary, evidence=evidence, fix=_FIX_UNKNOWN)
    gpus = [device for device in devices if device.is_gpu and device.numa_node not in (None, -1)]
    nics = [device for device in devices if device.is_rdma_nic and device.numa_node not in (None, -1)]
    for gpu in gpus:
        yield from _contradiction(tree, gpu, nics)
    yield from _distance(gpus, nics)


def _contradiction(tree: PciTree, gpu: PciDevice, nics: Iterable[PciDevice]) -> Iterator[Finding]:
    """Finds NICs behind the GPU's root port with another NUMA node: a root port belongs to one processor."""
    for nic in nics:
        if nic.numa_node != gpu.numa_node and share_root_port(tree, gpu.address, nic.address):
            yield finding(
                "NUMA_MISMATCH",
                gpu.address,
                f"is on NUMA node {gpu.numa_node}, and {nic.address} behind the same switch on {nic.numa_node}",
                evidence={"numa_node": gpu.numa_node, "nic": nic.address, "nic_numa_node": nic.numa_node},
                fix=_FIX_CONTRADICTION,
            )


def _distance(gpus: Iterable[PciDevice], nics: Iterable[PciDevice]) -> Iterator[Finding]:
    """Finds GPUs on a node without a NIC, while another node has several NICs of one model."""
    with_nic = {nic.numa_node for nic in nics}
    models = Counter((nic.numa_node, nic.vendor, nic.device) for nic in nics)
    spare = sorted({node for (node, *_), count in models.items() if count > 1 and node is not None})
    for gpu in gpus:
        if spare and gpu.numa_node not in with_nic:
            yield finding(
                "NUMA_MISMATCH",
                gpu.address,
                f"is on NUMA node {gpu.numa_node}, which has no RDMA NIC, while node {spare[0]} has several",
                evidence={"numa_node": gpu.numa_node, "nics": {nic.address: nic.numa_node for nic in nics}},
                fix=_FIX_DISTANCE,
            )


PROBE: Final = Probe("numa", check, EndpointThresholds(), group=KERNEL)
