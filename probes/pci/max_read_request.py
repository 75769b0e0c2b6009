"""PCIE_MAX_READ_REQUEST_LOW: a GPU or RDMA NIC that asks for memory in pieces too small for its link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.pci.model.config_space import Express
from laggard.probes.pci.model.sysfs import endpoints, read_tree, with_config
from laggard.probes.pci.model.tree import PciDevice
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX = (
    "Set it anew: bits 14:12 of the device's control register, 5 for 4096 bytes and 2 for 512, as below (lost at the "
    "next boot). For good, in the firmware or the NIC's own settings."
)
_FEWEST_PEERS = 3


class RequestThresholds(Thresholds, frozen=True):
    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices to judge, and the bridges above them. None named: all GPUs and RDMA NICs."""

    least_bytes: int = 512
    """Below: a warning, and it is what the kernel's `pci=pcie_bus_perf` can leave behind. 512 is what devices start
    with. NVIDIA's guides ask for 4096 for ConnectX."""

    fast_least_bytes: int = 4096
    """For a NIC whose link carries 25 GB/s or more (16 GT/s x16): below, a note."""

    fast_gigatransfers: float = 256.0
    """Speed times lanes from which a link is a fast one."""


def check(host: Host, thresholds: RequestThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    devices = tuple(with_config(host, endpoints(host, tree, thresholds.endpoints)))
    yield Fact("read_request_bytes", {device.address: _size(device) for device in devices})
    yield from judge(devices, thresholds)
    unknown = [device for device in devices if _express(device) is None and not _not_express(device)]
    if unknown:
        why = unknown[0].why_no_config or "the kernel shows it to root alone, or the device does not answer"
        raise Unknown(f"the read request size of {len(unknown)} devices cannot be told: {why}")


def judge(devices: Iterable[PciDevice], thresholds: RequestThresholds) -> Iterator[Finding]:
    """Pure: also for what `lspci` printed."""
    known = [(device, express) for device in devices if (express := _express(device))]
    for device, express in known:
        size = express.read_request_bytes
        alike = [other.read_request_bytes for peer, other in known if peer.hardware == device.hardware]
        peers = majority(alike, _FEWEST_PEERS)
        if size < thresholds.least_bytes:
            yield _finding(device, express, thresholds.least_bytes, "below what devices start with", Severity.WARNING)
        elif peers is not None and size < peers:
            yield _finding(device, express, peers, "and most of its peers for more", Severity.WARNING)
        elif device.is_rdma_nic and size < thresholds.fast_least_bytes and _is_fast(express, thresholds):
            reason = "its vendor's guides advise more"
            yield _finding(device, express, thresholds.fast_least_bytes, reason, Severity.INFO)


def _finding(device: PciDevice, express: Express, should: int, reason: str, severity: Severity) -> Finding:
    size = express.read_request_bytes
    return finding(
        "PCIE_MAX_READ_REQUEST_LOW",
        device.address,
        f"asks for at most {size} bytes at once, {reason}",
        evidence={"max_read_request_bytes": size, "expected_bytes": should, "max_payload_bytes": express.payload_bytes},
        fix=_FIX,
        commands=(f"setpci -s {device.address} CAP_EXP+8.w",),
        severity=severity,
    )


def _express(device: PciDevice) -> Express | None:
    return device.config.express if device.config and device.config.answers else None


def _not_express(device: PciDevice) -> bool:
    config = device.config
    return config is not None and config.answers and config.standard_known


def _size(device: PciDevice) -> int | None:
    express = _express(device)
    return express.read_request_bytes if express else None


def _is_fast(express: Express, thresholds: RequestThresholds) -> bool:
    return express.speed * express.width >= thresholds.fast_gigatransfers


PROBE: Final = Probe("pcie_requests", check, RequestThresholds())
