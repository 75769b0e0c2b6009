"""The GPUs that are plugged in and where: from the PCI tree alone, so that no driver can hide them."""

from __future__ import annotations

from typing import NamedTuple

from laggard.probes.gpu_bus import look_at_bus
from laggard.probes.host import Host
from laggard.probes.rdma_pci import PCI
from laggard.probes.shape import Missing, Unknown


class Gpu(NamedTuple):
    address: str
    numa_node: int
    """-1: the firmware does not say."""


def read_gpus(host: Host) -> tuple[Gpu, ...]:
    """NVIDIA's GPUs, but for those that are handed to virtual machines. None is said only of a tree that could be
    read. Raises Unknown."""
    bus = look_at_bus(host)
    if not bus.gpus and bus.unreadable:
        raise Unknown(f"PCI device {bus.unreadable[0]} does not say what it is")
    return tuple(Gpu(address, _numa_node(host, f"{PCI}/{address}")) for address in bus.gpus)


def _numa_node(host: Host, folder: str) -> int:
    try:
        return int(host.read(f"{folder}/numa_node"))
    except (Missing, ValueError):  # a kernel without NUMA has no such file
        return -1
