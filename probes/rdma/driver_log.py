"""RDMA_DRIVER_ERROR: what a NIC's driver wrote to the kernel's log since boot, within a look-back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_uptime, require_log
from laggard.probes.pci.rules.kernel_messages import find_device_errors
from laggard.probes.probe import RDMA, NotNegative, Probe, Thresholds
from laggard.probes.rdma.model.nics import Nic, read_nics
from laggard.probes.rdma.model.sysfs import LINK_UP, has_been_up, read_ports

_CODE = "RDMA_DRIVER_ERROR"
_DRIVER = "mlx5_core"


class RdmaDriverThresholds(Thresholds, frozen=True):
    look_back_seconds: NotNegative = 86400.0
    """The time for which a line of the log counts; a restart of the driver ends it earlier."""


def check(host: Host, thresholds: RdmaDriverThresholds) -> Iterator[Finding]:
    nics = read_nics(host)
    if not any(nic.driver == _DRIVER for nic in nics):
        raise NotApplicable(f"none of {len(nics)} RDMA NICs in the PCI tree runs with {_DRIVER}")
    uptime = read_uptime(host)
    since = uptime - thresholds.look_back_seconds
    present = {nic.address: nic for nic in nics}
    log = host.kernel_log()
    for found in find_device_errors(log, since, host.boot_time(uptime)):
        if found.code == _CODE and found.device in present:  # a NIC that was taken out is no fault any more
            yield _with_witness(found, _at_fault_now(host, present[found.device]))
    require_log(host, log, since, uptime)


def _with_witness(found: Finding, at_fault: str) -> Finding:
    """A line of the log is critical where the NIC's state confirms it, or where it came again and again: the firmware
    may have recovered, and a NIC that was taken out and put back logs the same."""
    if found.severity is not Severity.CRITICAL or found.evidence.get("proof"):
        return found
    severity = Severity.CRITICAL if at_fault else Severity.WARNING
    summary = f"{found.summary}, and {at_fault or 'it answers now'}"
    return msgspec.structs.replace(found, severity=severity, summary=summary)


def _at_fault_now(host: Host, nic: Nic) -> str:
    """Returns what the kernel shows of the NIC now that confirms an error; empty where nothing does."""
    if not nic.driver:
        return "it has no driver now"
    if not nic.rdma_device:
        return "it has no RDMA device now"
    try:
        ports, _, unreadable = read_ports(host, judge_software=True)
    except (NotApplicable, Unknown):
        return "its ports cannot be read now"
    mine = [port for port in ports if port.device == nic.rdma_device]
    if not mine:
        return "its ports cannot be read now" if unreadable else ""
    down = [port for port in mine if not port.active and (port.phys_state == LINK_UP or has_been_up(host, port))]
    return f"its port is {down[0].state_text}" if down else ""


PROBE: Final = Probe("rdma_driver", check, RdmaDriverThresholds(), group=RDMA)
