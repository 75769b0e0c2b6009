"""IOMMU_ENABLED: GPUs or NICs of which the IOMMU translates every memory access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.sysfs import EndpointThresholds, read_tree, select_endpoints
from laggard.probes.probe import KERNEL, Fact, Probe, finding

_GROUPS: Final = "/sys/kernel/iommu_groups"
_TRANSLATING: Final = ("DMA", "DMA-FQ", "DMA-SVA")
_FIX: Final = (
    "Add `iommu=pt` to the kernel's command line (on Arm `iommu.passthrough=1`), or turn the IOMMU off where this "
    "host passes no device to virtual machines, and restart. Keep it where devices or their drivers are not trusted."
)
_PARAMETERS: Final = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict")


def check(host: Host, thresholds: EndpointThresholds) -> Iterator[Finding | Fact]:
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
        yield _finding(translating, modes, parameters, is_virtual_machine(host))
    unknown = [address for address, mode in modes.items() if mode == "unknown"]
    if unknown:
        raise Unknown(f"how the IOMMU treats {unknown[0]} and {len(unknown) - 1} others cannot be read")


def _finding(
    translating: list[str], modes: Mapping[str, str], parameters: Mapping[str, str], virtual: bool | None
) -> Finding:
    """Makes one finding for all devices. The cost: traffic between a GPU and a NIC needs an entry in the IOMMU's cache
    for each page that it touches."""
    where = " of this virtual machine" if virtual else ""
    return finding(
        "IOMMU_ENABLED",
        "iommu",
        f"translates every memory access of {len(translating)} GPUs and NICs{where}: it is not in passthrough mode",
        evidence={"devices": translating, "modes": dict(modes), "kernel_parameters": dict(parameters)},
        fix=_FIX,
        commands=("cat /proc/cmdline", f"grep . {_GROUPS}/*/type"),
    )


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


PROBE: Final = Probe("iommu", check, EndpointThresholds(), group=KERNEL)
