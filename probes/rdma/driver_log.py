"""RDMA_DRIVER_ERROR: what a NIC's driver wrote to the kernel's log since boot, within a look-back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.kernel_rules.rule import Hit, Rule, rules, rules_of
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import judge_log, last_at
from laggard.probes.host.virtualization import read_uptime, require_log
from laggard.probes.probe import RDMA, NotNegative, Probe, Thresholds, finding
from laggard.probes.rdma.model.nics import Nic, read_nics
from laggard.probes.rdma.model.sysfs import LINK_UP, has_been_up, read_ports

_DRIVER = "mlx5_core"
_PROOF: Final = 3
"""So many commands that time out need no other witness: one may be a firmware that was busy, and went on."""


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
    told: dict[str, tuple[Rule, Hit]] = {}
    for rule, hit in judge_log(log, rules_of("devices", "nic"), (f"{_DRIVER} ",)).open():
        address = hit.groups["device"].lower()
        if address in present and (hit.seconds is None or hit.seconds >= since):  # one that was taken out is no fault
            told.setdefault(address, (rule, hit))
    for address, (rule, hit) in told.items():
        yield _finding(rule, hit, address, _at_fault_now(host, present[address]), since, host.boot_time(uptime))
    require_log(host, log, since, uptime)


def _finding(rule: Rule, hit: Hit, address: str, at_fault: str, since: float, booted_at: float | None) -> Finding:
    """A line of the log is critical where the NIC's state confirms it, or where it came again and again: the firmware
    may have recovered, and a NIC that was taken out and put back logs the same."""
    proof = rule is rules("devices")["nic_commands"] and sum(at is None or at >= since for at in hit.latest) >= _PROOF
    severity, summary = rule.severity, rule.summary + (f", {hit.times} lines of the log" if hit.times > 1 else "")
    if severity is Severity.CRITICAL and not proof:
        severity = Severity.CRITICAL if at_fault else Severity.WARNING
        summary = f"{summary}, and {at_fault or 'it answers now'}"
    told = {"count": hit.times, **last_at(hit.seconds, booted_at), "last": hit.last[:200]}
    commands = rule.commands_for(address)
    return finding(rule.code, address, summary, evidence=told, fix=rule.fix, commands=commands, severity=severity)


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
