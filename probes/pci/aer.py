"""PCIE_AER_ERRORS: errors that the links between GPUs, NICs and the root reported since the last look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.pci.model.sysfs import endpoints, read_tree
from laggard.probes.pci.model.tree import PciDevice
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FILES: Final = {
    "correctable": ("aer_dev_correctable", "TOTAL_ERR_COR"),
    "nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
}
_FIX: Final = (
    "Seat the card, riser or cable anew and look at the kernel's log (`AER:`) for the kind of error. Where errors come "
    "back, exchange the device, then the board. Do not hide them with `pci=noaer`."
)
_HOUR: Final = 3600.0


class ErrorThresholds(Thresholds, frozen=True):
    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices to judge, and the bridges above them. None named: all GPUs and RDMA NICs."""

    correctable_per_hour: float = 1800.0
    """A bit error ratio of 1e-12, the most that PCI Express allows a lane up to 32 GT/s (Base Specification, 8.4), on
    16 lanes at 32 GT/s: one error in two seconds. Each costs a replay of about a microsecond; good links have none."""

    nonfatal_per_hour: float = 0.0
    """More than these: critical. A transaction was lost."""


def check(host: Host, thresholds: ErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    tree = read_tree(host)
    ends = endpoints(host, tree, thresholds.endpoints)
    devices = {device.address: device for end in ends for device in tree.path(end.address)}
    counts: dict[str, int] = {}
    silent: list[str] = []
    for device in devices.values():
        try:
            counts.update(_counts(host, device))
        except NotFound:
            continue  # the device or the firmware's agreement with the kernel has no error reporting
        except Unknown as error:
            silent.append(str(error))
    yield SaveCounters(counts)
    yield Fact("errors", {name: count for name, count in counts.items() if count})
    for device in devices.values():
        yield from _judge(host, device, counts, thresholds)
    if silent:
        raise Unknown(silent[0])
    if not counts:
        raise NotApplicable(
            f"the kernel counts no errors of {len(devices)} PCI devices: no AER, or the firmware has it"
        )


def _counts(host: Host, device: PciDevice) -> Iterator[tuple[str, int]]:
    for kind, (file, total) in _FILES.items():
        yield f"{device.address} {kind}", parse_total(host.read(f"{device.folder}/{file}"), total)


def parse_total(text: str, name: str) -> int:
    """The number after `name` in a list of `KIND COUNT`; without it the sum of the kinds."""
    pairs = [line.rsplit(None, 1) for line in text.splitlines() if line.strip()]
    if not pairs or not all(len(pair) == 2 and pair[1].isascii() and pair[1].isdigit() for pair in pairs):
        raise Unknown("a list of PCI errors holds something else than names and numbers")
    counts = {kind: int(count) for kind, count in pairs}
    return counts.get(name, sum(counts.values()))


def _judge(host: Host, device: PciDevice, counts: dict[str, int], thresholds: ErrorThresholds) -> Iterator[Finding]:
    limits = {
        "fatal": (0.0, Severity.CRITICAL),
        "nonfatal": (thresholds.nonfatal_per_hour, Severity.CRITICAL),
        "correctable": (thresholds.correctable_per_hour, Severity.WARNING),
    }
    for kind, (most, severity) in limits.items():
        name = f"{device.address} {kind}"
        increase = host.counter_history.increase(name, counts[name], _HOUR) if name in counts else None
        if increase is None or increase.per(_HOUR) <= most:
            continue
        yield finding(
            "PCIE_AER_ERRORS",
            device.address,
            f"reported {increase.count} {kind} PCI Express errors in {increase.seconds / 60:.0f} minutes",
            evidence={"kind": kind, "new": increase.count, "seconds": round(increase.seconds), "total": counts[name],
                      "most_per_hour": most},
            fix=_FIX,
            commands=("dmesg | grep -i AER", f"lspci -vvv -s {device.address}"),
            severity=severity,
        )  # fmt: skip


PROBE: Final = Probe("pcie_errors", check, ErrorThresholds())
