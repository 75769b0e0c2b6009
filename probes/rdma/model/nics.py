"""NICs on the PCI bus that are RDMA devices when their driver is loaded, whether or not it is now."""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.kit.majority import with_peers
from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotFound, Unknown, if_present
from laggard.probes.host.host import Host

PCI: Final = "/sys/bus/pci/devices"
_ETHERNET, _INFINIBAND = "0x0200", "0x0207"  # PCI class codes: base class 02, sub-class (PCI Code and ID Assignment)
_MELLANOX: Final = 0x15B3
_EFA: Final = 0x1D0F, 0xEFA  # Amazon's, whose models are 0xefa0, 0xefa1 and so on (efa_main.c)
ADDRESS = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GPU_DRIVERS: Final = ("nvidia", "amdgpu")


class Nic(msgspec.Struct, frozen=True):
    address: str
    vendor: int
    device: int
    rdma_alone: bool  # it is for nothing else: of PCI class InfiniBand, or an EFA; else Ethernet
    driver: str  # empty: none is bound
    rdma_device: str  # empty: none is registered
    physical_function: str  # address of a virtual function's physical one; empty: this is no virtual function
    subsystem: str

    @property
    def model(self) -> tuple[int, int, bool, bool]:
        """The same for peers."""
        return self.vendor, self.device, self.rdma_alone, bool(self.physical_function)


def read_nics(host: Host) -> tuple[Nic, ...]:
    """Returns the NICs of Mellanox and NVIDIA (ConnectX-4 and newer are all RDMA devices), those of any make that are
    for RDMA alone, and of other makes those that are RDMA devices now, with their peers. Raises Unknown where the PCI
    bus cannot be listed."""
    try:
        addresses = [name for name in host.entries(PCI) if ADDRESS.fullmatch(name)]
    except NotFound as error:
        raise Unknown(str(error)) from None
    nics = [nic for address in addresses if (nic := if_present(_nic, host, address))]
    models = {nic.model for nic in nics if nic.rdma_device}
    return tuple(nic for nic in nics if nic.vendor == _MELLANOX or nic.rdma_alone or nic.model in models)


def gpu_addresses(host: Host) -> tuple[str, ...]:
    """Returns the addresses of the GPUs whose driver is loaded, without a display card. That is one directory to list;
    to search the whole bus would be hundreds of files to read."""
    found: list[str] = []
    for driver in _GPU_DRIVERS:
        found += [name for name in host.names(f"/sys/bus/pci/drivers/{driver}") if ADDRESS.fullmatch(name)]
    return with_peers(found, lambda name: host.text(f"{PCI}/{name}/device"))


def _nic(host: Host, address: str) -> Nic | None:
    """Raises NotFound for a recording without these files, or a device that was removed while it was read."""
    folder = f"{PCI}/{address}"
    pci_class = host.read(f"{folder}/class").strip()[:6]
    if pci_class not in (_ETHERNET, _INFINIBAND):
        return None
    names = host.entries(folder)
    vendor, device = (_number(host.read(f"{folder}/{name}")) for name in ("vendor", "device"))
    return Nic(
        address=address,
        vendor=vendor,
        device=device,
        rdma_alone=pci_class == _INFINIBAND or (vendor, device >> 4) == _EFA,
        driver=host.read_link(f"{folder}/driver").rsplit("/", 1)[-1] if "driver" in names else "",
        rdma_device=next(iter(host.entries(f"{folder}/infiniband")), "") if "infiniband" in names else "",
        physical_function=host.read_link(f"{folder}/physfn").rsplit("/", 1)[-1] if "physfn" in names else "",
        subsystem=host.read(f"{folder}/subsystem_device").strip() if "subsystem_device" in names else "",
    )


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise Unknown(f"{text[:20]!r} is no PCI identity") from None
