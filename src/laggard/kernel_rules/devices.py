"""The rules for the firmware of ConnectX NICs, and for what PCIe devices report of themselves; links of network devices
that went down and came up.

Sources: Linux, drivers/net/ethernet/mellanox/mlx5/core/{health,events,cmd,en_main}.c,
drivers/net/ethernet/broadcom/bnxt, drivers/pci/pcie/aer.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from laggard.kernel_rules.rule import ADDRESS, CRITICAL, WARNING, Rule
from laggard.kit.words import lazy_pattern
from laggard.model import Severity

_MANY_CORRECTED: Final = 100
"""The number of corrected errors from which on they are a finding. The link repeats what a corrected error damaged, at
little cost; a hundred in one log are a bad contact."""
_LOG: Final = ("lspci -vv -s {device}", "dmesg -T | grep {device}")
_RESET_NIC: Final = "Reset the NIC (`mlxfwreset`) or restart the node; then look for newer firmware."


def _nic(form: str, severity: Severity, summary: str, fix: str = _RESET_NIC) -> Rule:
    return Rule("mlx5_core", rf"^mlx5_core {ADDRESS}:? .*?(?:{form})", "RDMA_DRIVER_ERROR", severity, "{device}",
                summary, fix, _LOG, rf"^mlx5_core {ADDRESS}:? (?:.*?health recovery succeeded|firmware version: )",
                )  # fmt: skip


def _pcie(form: str, severity: Severity, summary: str, least: int = 1) -> Rule:
    return Rule("PCIe Bus Error", rf"^\S{{1,40}} {ADDRESS}: (?:AER: )?PCIe Bus Error: severity={form}",
                "PCIE_AER_ERRORS", severity, "{device}", summary,
                "Reseat the card or its riser; check the link's width and speed, and other cards in that slot.", _LOG,
                least=least)  # fmt: skip


COMMANDS_TIME_OUT: Final = _nic(r"timeout\. Will cause a leak of a command resource", CRITICAL,
                                "the NIC's firmware does not carry out commands")  # fmt: skip
NIC_FIRMWARE_RULES: Final = (
    _nic(r"device's health compromised|reached miss count|health poll failed", CRITICAL,
         "the NIC's firmware stopped answering"),
    _nic(r"unrecoverable hardware error|firmware internal error|Fatal error \d+ detected", CRITICAL,
         "the NIC reports an error of its firmware or hardware"),
    COMMANDS_TIME_OUT,
    _nic(r"[Hh]igh [Tt]emperature|temperature warning event", WARNING,
         "the NIC or its transceiver is too hot", "Check the airflow, the transceiver and the cable."),
    _nic(r"Detected insufficient power on the PCIe slot", WARNING,
         "the slot offers less power than the NIC asks for",
         "Measure the port's bandwidth. If it is low, use another slot, or raise the slot's power limit in the BIOS. "
         "Some boards (DGX Spark) report this and lack nothing."),
)  # fmt: skip
"""The gravest first."""

PCIE_RULES: Final = (
    _pcie(r"Uncorrect(?:ed|able) \(Fatal\)", CRITICAL, "a fatal PCIe error"),
    # also a request of a driver that a device does not support
    _pcie(r"Uncorrect(?:ed|able) \(Non-Fatal\)", WARNING, "an uncorrected PCIe error"),
    _pcie(r"Correct(?:ed|able)", WARNING, "many corrected PCIe errors", _MANY_CORRECTED),
)

LINK: Final = lazy_pattern(
    r"(\S{1,40} [0-9a-f:.]{7,12}) (\S{1,40}): (?:(?:NIC )?Link (?:is )?|Port: \d+ Link )"
    r"([Dd]own|[Uu]p|DOWN|UP|ACTIVE)\b"
)
_STARTED: Final = lazy_pattern(r"(mlx5_core [0-9a-f:.]{12}): firmware version: ")


class LinkChange(NamedTuple):
    """`driver`: with the PCI address. `device`: the network device's name. `seconds`: after boot, where it is told."""

    driver: str
    device: str
    down: bool
    seconds: float | None
    text: str


def link_changes(messages: Iterable[tuple[float | None, str]]) -> Iterator[LinkChange]:
    """Those of links that were up: a link that is down since its driver's start has no cable. `messages`: seconds and
    text of each."""
    known: set[tuple[str, str]] = set()
    started: set[str] = set()
    for seconds, text in messages:
        if "ink " in text and (match := LINK.search(text)):
            driver, device, state = match.groups()
            down = state.lower() == "down"
            if not down or (driver, device) in known or driver not in started:
                known.add((driver, device))
                yield LinkChange(driver, device, down, seconds, text)
        elif "firmware version: " in text and (begun := _STARTED.search(text)):
            started.add(begun[1])
