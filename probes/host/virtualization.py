"""Tells a virtual machine from a physical one."""

from __future__ import annotations

from typing import Final

from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.text.lazy_pattern import lazy_pattern

_VENDORS: Final = (
    "QEMU",
    "Xen",
    "VMware, Inc.",
    "innotek GmbH",
    "OpenStack Foundation",
    "Bochs",
    "Amazon EC2",
    "Alibaba Cloud",
    "KubeVirt",
    "Parallels",
)
_PRODUCTS: Final = (
    "KVM",
    "KVM Virtual Machine",
    "Virtual Machine",
    "Google Compute Engine",
    "HVM domU",
    "OpenStack Nova",
)
_METAL: Final = lazy_pattern(r"[a-z0-9-]+\.metal(-[a-z0-9]+)?")
"""The product names of Amazon's machines without a hypervisor: `g5g.metal`, `i8g.metal-24xl`."""


def is_virtual_machine(host: Host) -> bool | None:
    """Whether the machine is virtual; None where that is unknown. On x86 the CPU's `hypervisor` flag decides; on Arm,
    which has no such flag, the vendor and product names of the firmware (DMI)."""
    try:
        cpus = host.read("/proc/cpuinfo")
    except Unknown:
        cpus = ""
    flags = next((line for line in cpus.splitlines() if line.startswith("flags")), None)
    if flags is not None:
        return "hypervisor" in flags.split()
    vendor, product = _text(host, "/sys/class/dmi/id/sys_vendor"), _text(host, "/sys/class/dmi/id/product_name")
    if vendor in _VENDORS or product in _PRODUCTS:
        return not _METAL.fullmatch(product)
    return False if cpus and vendor else None


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path).strip()
    except Unknown:
        return ""
