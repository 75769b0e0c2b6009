"""RDMA_DEVICE_MISSING, RDMA_RENAMED, RDMA_FIRMWARE_MIXED, NIC_MIXED and RDMA_PKEY_MISSING: RDMA devices that are
missing, that are not under the names that the job's configuration uses, or that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown, Unreadable, or_none
from laggard.probes.gpu.model.pci_devices import LENDING
from laggard.probes.host.host import Host
from laggard.probes.host.mount_table import in_container, read_mounts
from laggard.probes.probe import RDMA, Count, Fact, Probe, Thresholds, matches_any, say
from laggard.probes.rdma.model.nccl_settings import HcaSelection, read_hca_selection
from laggard.probes.rdma.model.nics import Nic, gpu_addresses, read_nics
from laggard.probes.rdma.model.sysfs import device_names, is_software_device, pci_address
from laggard.probes.rdma.rules.uniformity import judge_beside, judge_firmware, judge_gone
from laggard.probes.rows import Item, Row, Told, judge, judge_items

_ALL: Final = "RDMA devices"


class RdmaDeviceThresholds(Thresholds, frozen=True):
    expected: Count = 0
    """The number of RDMA devices (physical, not ignored) of this machine; 0: as many as its PCI bus shows."""

    names: dict[str, str] = {}
    """The PCI address at which each named device must be: `mlx5_0: "0000:1a:00.0"`."""

    ignore: tuple[str, ...] = ()
    """Patterns of the devices that are not judged, by name (`mlx5_bond_*`) or PCI address."""


def check(host: Host, thresholds: RdmaDeviceThresholds) -> Told:
    names = tuple(name for name in device_names(host) if not is_software_device(host, name))
    try:
        all_nics, is_listed = read_nics(host), True
    except Unknown as error:
        yield Unreadable(str(error))
        all_nics, is_listed = (), False
    nics = tuple(nic for nic in all_nics if not matches_any(nic.address, thresholds.ignore))
    if not names and not nics and is_listed and not thresholds.expected and not thresholds.names:
        raise NotApplicable("no RDMA device, and no NIC on the PCI bus that could be one")
    places = {name: pci_address(host, name) for name in names}
    yield Fact("devices", places)
    judged = [name for name in names if not matches_any(name, thresholds.ignore)]
    needed = bool(gpu_addresses(host)) and not judged
    items = [Item(nic.address, 0, 1, it) for nic in nics if (it := _severity(nic, nics, needed)) is not None]
    items.append(Item(_ALL, len(judged)))
    yield from judge_items(host, _DEVICES, items, {_ALL: thresholds.expected})
    if is_listed:
        yield from judge_gone(host, all_nics)
    if judged:
        yield from judge(host, _VERBS)
    yield from _judge_names(places, thresholds.names, read_hca_selection(host))
    yield from judge_firmware(host, judged)
    yield from judge_beside(host, thresholds.ignore)


def _severity(nic: Nic, nics: tuple[Nic, ...], needed: bool) -> Severity | None:
    """Returns how severe it is that `nic` has no RDMA device; None where it has one, or that is no fault. An Ethernet
    NIC may be used for plain Ethernet, unless its peers are RDMA devices. The second function of a bond has none of its
    own. `needed`: the machine has GPUs and no RDMA device at all."""
    is_lent = "vfio" in nic.driver or nic.driver in LENDING  # to a virtual machine
    if nic.rdma_device or is_lent or nic.physical_function:
        return None
    peers = [other for other in nics if other.model == nic.model and other.subsystem == nic.subsystem]
    if any(other.rdma_device.find("bond") >= 0 and _card(other) == _card(nic) for other in peers):
        return None
    peers_with_device = sum(bool(other.rdma_device) for other in peers)
    if nic.rdma_alone or 2 * peers_with_device > len(peers):
        return Severity.CRITICAL
    return Severity.WARNING if peers_with_device or needed else None


def _card(nic: Nic) -> str:
    return nic.address.rpartition(".")[0]


_DEVICES: Final = Row("devices", table="rdma")


def _verbs_files(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """Programs use RDMA devices by what ib_uverbs makes in /dev. A container may lack it, which is its jobs' matter."""
    if "infiniband" in host.entries("/dev") or "null" in host.entries("/dev"):
        files = sum(name.startswith("uverbs") for name in host.names("/dev/infiniband"))
        contained = in_container(or_none(read_mounts, host) or ()) and "SLURM_JOB_ID" not in host.variables()
        yield Item("/dev/infiniband", files, 1, Severity.WARNING if contained else Severity.CRITICAL)


_VERBS: Final = _DEVICES._replace(read=_verbs_files, section="verbs")


def _judge_names(
    places: Mapping[str, str], expected: Mapping[str, str], selection: HcaSelection | None
) -> Iterator[Finding]:
    """`places`: PCI addresses by device name; `expected`: the same, from the profile."""
    for name, address in expected.items():
        if places.get(name) != address:
            now = next((other for other, place in places.items() if place == address), "no device")
            evidence = {"expected": address, "devices": dict(places)}
            yield say("rdma", "renamed", name, evidence, told=f"is not at {address}, where {now} is")
    if selection is None or not places:
        return
    absent = selection.absent(tuple(places))
    if absent:
        evidence = {"NCCL_IB_HCA": selection.text, "devices": sorted(places)}
        told = f"is named by NCCL_IB_HCA ({selection.source}) and is not there"
        yield say("rdma", "renamed", ", ".join(absent), evidence, told=told)


PROBE: Final = Probe("rdma_devices", check, RdmaDeviceThresholds(), group=RDMA)
