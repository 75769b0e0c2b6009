"""PCIE_AER_ERRORS: errors that the links between GPUs, NICs and the root reported since the last snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.pci.model.sysfs import EndpointThresholds, read_tree, select_endpoints
from laggard.probes.pci.model.tree import PciDevice
from laggard.probes.probe import PCI, Fact, NotNegative, Probe, say

_FILES: Final = {
    "correctable": ("aer_dev_correctable", "TOTAL_ERR_COR"),
    "nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
}
_HOUR: Final = 3600.0


class AerThresholds(EndpointThresholds, frozen=True):
    correctable_per_hour: NotNegative = 1800.0
    """One error in two seconds: the bit error ratio of 1e-12, the highest that PCI Express allows a lane up to 32 GT/s
    (Base Specification, 8.4), on 16 lanes at 32 GT/s. Each costs a replay of about a microsecond; good links have
    none."""

    nonfatal_per_hour: NotNegative = 0.0
    """More are a warning: each is a transaction that was lost, or a request of a driver that the device does not
    support, which is no fault of the hardware. The kernel's log tells which."""


def check(host: Host, thresholds: AerThresholds) -> Iterator[Finding | Fact | SaveCounters | Unreadable]:
    tree = read_tree(host)
    devices = tree.paths_to_root(select_endpoints(tree, thresholds.endpoints))
    counts: dict[str, int] = {}
    for device in devices:
        try:
            counts.update(_counts(host, device))
        except NotFound:
            continue  # no error reporting: the device has none, or the firmware did not hand it to the kernel
        except Unknown as error:
            yield Unreadable(str(error))
    yield SaveCounters(counts)
    yield Fact("errors", {name: count for name, count in counts.items() if count})
    for device in devices:
        yield from _judge(host, device, counts, thresholds)
    if not counts:
        raise NotApplicable(
            f"the kernel counts no errors of {len(devices)} PCI devices: they have no AER, or the firmware keeps it"
        )


def _counts(host: Host, device: PciDevice) -> Iterator[tuple[str, int]]:
    for kind, (file, total) in _FILES.items():
        yield f"{device.address} {kind}", parse_total(host.read(f"{device.folder}/{file}"), total)


def parse_total(text: str, name: str) -> int:
    """Returns the number after `name` in a list of `KIND COUNT`, or the sum of all if the name is not there. Raises
    Unknown for any other text."""
    pairs = [line.rsplit(None, 1) for line in text.splitlines() if line.strip()]
    if not pairs or not all(len(pair) == 2 and pair[1].isascii() and pair[1].isdigit() for pair in pairs):
        raise Unknown("a list of PCI errors holds other things than names and numbers")
    counts = {kind: int(count) for kind, count in pairs}
    return counts.get(name, sum(counts.values()))


def _judge(host: Host, device: PciDevice, counts: dict[str, int], thresholds: AerThresholds) -> Iterator[Finding]:
    limits = {
        "fatal": (0.0, Severity.CRITICAL),
        "nonfatal": (thresholds.nonfatal_per_hour, Severity.WARNING),
        "correctable": (thresholds.correctable_per_hour, Severity.WARNING),
    }
    for kind, (most, severity) in limits.items():
        name = f"{device.address} {kind}"
        increase = host.counter_history.increase(name, counts[name], _HOUR) if name in counts else None
        if increase is None or increase.per(_HOUR) <= most:
            continue
        evidence = {
            "kind": kind,
            "new": increase.count,
            "seconds": round(increase.seconds),
            "total": counts[name],
            "most_per_hour": most,
        }
        told = {"count": increase.count, "kind": kind, "minutes": f"{increase.seconds / 60:.0f}"}
        yield say("pci", "aer", device.address, evidence, severity, address=device.address, **told)


PROBE: Final = Probe("pcie_errors", check, AerThresholds(), group=PCI)
