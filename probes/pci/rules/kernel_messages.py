"""Findings from the kernel's log about PCI devices, except Xids: GPUs that fell off the bus, errors of ConnectX
drivers, PCIe errors. Pure. The messages are those of drivers/net/ethernet/mellanox/mlx5/core/{health,events,cmd}.c and
drivers/pci/pcie/aer.c. A message is a driver's where its record begins so: see host/kernel_log.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.host.kernel_log import KernelMessage, begins_with_users_text, last_at, messages_of
from laggard.probes.probe import finding

_ADDRESS = r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_MANY_CORRECTED: Final = 100
"""The number of corrected errors from which on they are a finding. The link repeats what a corrected error damaged, at
little cost; a hundred in one log are a bad contact."""


class MessageRule(NamedTuple):
    pattern: re.Pattern[str]
    """Its first group is the device's PCI address."""
    code: str
    severity: Severity
    summary: str
    fix: str
    least: int = 1
    proof_from: int = 0
    """The number of lines from which on a critical error needs no other witness; 0: it always needs one."""


_MLX5 = rf"mlx5_core {_ADDRESS}:? .*?"
_RECOVERED: Final = lazy_pattern(_MLX5 + r"health recovery succeeded|" + rf"mlx5_core {_ADDRESS}: firmware version: ")


def _nic(form: str, severity: Severity, summary: str, fix: str, proof_from: int = 0) -> MessageRule:
    pattern = lazy_pattern(_MLX5 + form)
    return MessageRule(pattern, "RDMA_DRIVER_ERROR", severity, summary, fix, proof_from=proof_from)


def _pcie(form: str, severity: Severity, summary: str, least: int = 1) -> MessageRule:
    pattern = lazy_pattern(rf"\S{{1,40}} {_ADDRESS}: (?:AER: )?PCIe Bus Error: severity={form}")
    fix = "Reseat the card or its riser; check the link's width and speed, and other cards in that slot."
    return MessageRule(pattern, "PCIE_AER_ERRORS", severity, summary, fix, least)


_RESET_NIC = "Reset the NIC (`mlxfwreset`) or restart the node; then look for newer firmware."
_RULES: Final = (  # of each code the most severe first
    MessageRule(
        lazy_pattern(rf"NVRM: .*?GPU (?:at PCI:)?{_ADDRESS}.*has fallen off the bus"),
        "GPU_LOST",
        Severity.CRITICAL,
        "fell off the bus",
        "Drain the node, power it off and on; if it happens again, have the GPU and its board inspected.",
    ),
    _nic(
        r"(?:device's health compromised|reached miss count|health poll failed)",
        Severity.CRITICAL,
        "the NIC's firmware stopped answering",
        _RESET_NIC,
    ),
    _nic(
        r"(?:unrecoverable hardware error|firmware internal error|Fatal error \d+ detected)",
        Severity.CRITICAL,
        "the NIC reports an error of its firmware or hardware",
        _RESET_NIC,
    ),
    _nic(
        r"timeout\. Will cause a leak of a command resource",
        Severity.CRITICAL,
        "the NIC's firmware does not carry out commands",
        _RESET_NIC,
        proof_from=3,  # one may be a firmware that was busy, and went on
    ),
    _nic(
        r"(?:[Hh]igh [Tt]emperature|temperature warning event)",
        Severity.WARNING,
        "the NIC or its transceiver is too hot",
        "Check the airflow, the transceiver and the cable.",
    ),
    _nic(
        r"Detected insufficient power on the PCIe slot",
        Severity.WARNING,
        "the slot offers less power than the NIC asks for",
        "Measure the port's bandwidth. If it is low, use another slot, or raise the slot's power limit in the BIOS. "
        "Some boards (DGX Spark) report this and lack nothing.",
    ),
    _pcie(r"Uncorrect(?:ed|able) \(Fatal\)", Severity.CRITICAL, "a fatal PCIe error"),
    # also a request of a driver that a device does not support
    _pcie(r"Uncorrect(?:ed|able) \(Non-Fatal\)", Severity.WARNING, "an uncorrected PCIe error"),
    _pcie(r"Correct(?:ed|able)", Severity.WARNING, "many corrected PCIe errors", _MANY_CORRECTED),
)


def find_device_errors(log: str, since_seconds: float = 0.0, booted_at: float | None = None) -> tuple[Finding, ...]:
    """Returns for each device and code the most severe finding. Messages older than `since_seconds` after boot do not
    count; messages without a time do. Messages of a NIC from before its driver restarted it are dropped. `booted_at`:
    Unix time, for the time of a finding's last message; None: not known."""
    return device_errors_of(messages_of(log), since_seconds, booted_at)


def device_errors_of(
    messages: Iterable[KernelMessage], since_seconds: float = 0.0, booted_at: float | None = None
) -> tuple[Finding, ...]:
    """Returns what find_device_errors does, of messages."""
    hits: dict[tuple[int, str], list[KernelMessage]] = {}
    for message in messages:
        text = message.text
        if message.seconds is not None and message.seconds < since_seconds:
            continue
        if begins_with_users_text(text):
            continue
        if match := _RECOVERED.match(text):
            address = (match[1] or match[2]).lower()
            hits = {key: found for key, found in hits.items() if key[1] != address}
        for number, rule in enumerate(_RULES):
            if match := rule.pattern.match(text):
                hits.setdefault((number, match[1].lower()), []).append(message)
                break
    worst: dict[tuple[str, str], Finding] = {}
    for number, address in sorted(hits):
        found = hits[number, address]
        if len(found) >= _RULES[number].least:
            worst.setdefault((_RULES[number].code, address), _finding(_RULES[number], address, found, booted_at))
    return tuple(worst.values())


def _finding(rule: MessageRule, address: str, messages: Sequence[KernelMessage], booted_at: float | None) -> Finding:
    times = "" if len(messages) == 1 else f", {len(messages)} lines of the log"
    last = messages[-1]
    return finding(
        rule.code,
        address,
        rule.summary + times,
        evidence={
            "count": len(messages),
            **last_at(last.seconds, booted_at),
            "last": last.text[:200],
            **({"proof": True} if 0 < rule.proof_from <= len(messages) else {}),
        },
        fix=rule.fix,
        commands=(f"lspci -vv -s {address}", f"dmesg -T | grep {address}"),
        severity=rule.severity,
    )
