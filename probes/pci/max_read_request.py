"""PCIE_MAX_READ_REQUEST_LOW: a GPU or RDMA NIC that reads memory in requests too small for its link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.pci.model.config_space import PciExpress
from laggard.probes.pci.model.sysfs import VirtualThresholds, read_tree, select_endpoints, with_config
from laggard.probes.pci.model.tree import PciDevice
from laggard.probes.probe import PCI, Count, Fact, NotNegative, Probe, finding

_FIX = (
    "Set it in bits 14:12 of the device's control register, 5 for 4096 bytes and 2 for 512, with setpci as below "
    "(until the next boot), or permanently in the firmware or the NIC's own settings."
)
_MIN_PEERS = 3


class ReadRequestThresholds(VirtualThresholds, frozen=True):
    least_bytes: Count = 512
    """Less is a warning; the kernel's `pci=pcie_bus_perf` can leave it behind. 512 is the value at reset. NVIDIA's
    guides ask for 4096 for ConnectX."""

    fast_least_bytes: Count = 4096
    """The least size for a NIC whose link carries 25 GB/s or more (16 GT/s x16): less is a note."""

    fast_gigatransfers: NotNegative = 256.0
    """GT/s times lanes from which a link is fast."""


def check(host: Host, thresholds: ReadRequestThresholds) -> Iterator[Finding | Fact]:
    # Without virtual functions, whose size is that of the physical one and reads as 128 (SR-IOV 3.5.4).
    ends = [end for end in select_endpoints(read_tree(host), thresholds.endpoints) if not end.virtual_function]
    devices = tuple(with_config(host, ends))
    yield Fact(
        "read_request_bytes",
        {device.address: device.config.express and device.config.express.read_request_bytes for device in devices},
    )
    if thresholds.is_virtual_machine(host):
        raise NotApplicable("a virtual machine: what it reads of these registers is its hypervisor's")
    yield from judge(devices, thresholds)
    unknown = [device for device in devices if not device.config.express and not device.config.standard_known]
    if unknown:
        reason = unknown[0].config_error or "the kernel shows it only to root, or the device does not answer"
        raise Unknown(f"the read request size of {len(unknown)} devices is unknown: {reason}")


def judge(devices: Iterable[PciDevice], thresholds: ReadRequestThresholds) -> Iterator[Finding]:
    """Judges devices of sysfs or of `lspci`. Pure."""
    known = [(device, device.config.express) for device in devices if device.config.express]
    for device, express in known:
        size, fast = express.read_request_bytes, express.speed * express.width >= thresholds.fast_gigatransfers
        same_model = [other.read_request_bytes for peer, other in known if peer.hardware == device.hardware]
        peers = majority(same_model, _MIN_PEERS)
        if size < thresholds.least_bytes:
            yield _finding(device, express, thresholds.least_bytes, "below the value at reset", Severity.WARNING)
        elif peers is not None and size < peers:
            yield _finding(device, express, peers, "and most of its peers for more", Severity.WARNING)
        elif device.is_rdma_nic and size < thresholds.fast_least_bytes and fast:
            reason = "its vendor's guides advise more"
            yield _finding(device, express, thresholds.fast_least_bytes, reason, Severity.INFO)


def _finding(device: PciDevice, express: PciExpress, expected: int, reason: str, severity: Severity) -> Finding:
    size = express.read_request_bytes
    return finding(
        "PCIE_MAX_READ_REQUEST_LOW",
        device.address,
        f"asks for at most {size} bytes at once, {reason}",
        evidence={"expected_bytes": expected, "max_payload_bytes": express.payload_bytes},
        fix=_FIX,
        commands=(f"setpci -s {device.address} CAP_EXP+8.w",),
        severity=severity,
    )


PROBE: Final = Probe("pcie_requests", check, ReadRequestThresholds(), group=PCI)
