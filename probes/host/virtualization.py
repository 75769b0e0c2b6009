"""Is this a virtual machine? Its own kernel tells."""

from __future__ import annotations

from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

_VENDORS: Final = ("QEMU", "Xen", "VMware, Inc.", "innotek GmbH", "OpenStack Foundation", "Bochs")
_PRODUCTS: Final = ("KVM", "KVM Virtual Machine", "Virtual Machine", "Google Compute Engine", "HVM domU")


def is_virtual_machine(host: Host) -> bool | None:
    """None: it cannot be told. On x86 the CPU's `hypervisor` flag; on Arm, which has none, what the firmware says."""
    try:
        cpus = host.read("/proc/cpuinfo")
    except Unknown:
        cpus = ""
    flags = next((line for line in cpus.splitlines() if line.startswith("flags")), None)
    if flags is not None:
        return "hypervisor" in flags.split()
    vendor, product = _line(host, "/sys/class/dmi/id/sys_vendor"), _line(host, "/sys/class/dmi/id/product_name")
    if vendor in _VENDORS or product in _PRODUCTS:
        return True
    return False if cpus and vendor else None


def _line(host: Host, path: str) -> str:
    try:
        return host.read(path).strip()
    except Unknown:
        return ""
