"""A rule for kernel logs: the form of a record that says that something is wrong, and the one that says that it is
right again."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from laggard.model import Severity

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING
ADDRESS: Final = r"(?P<device>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
"""A PCI address, as the group `device`."""
STARTS: Final = r"^Linux version \d"
"""The first record of a kernel that starts."""

compiled: Final[Callable[[str], re.Pattern[str]]] = cache(re.compile)
"""Compiles a pattern where it is asked for first: most logs hold the words of few rules."""


class Rule(NamedTuple):
    word: str
    """A part of every record that the pattern takes: few records are searched."""
    pattern: str
    """The group `device` names the device within `named`; `summary` may quote the other groups."""
    code: str
    severity: Severity
    named: str
    """The device of the finding, with `{device}` for the group."""
    summary: str
    fix: str
    commands: tuple[str, ...] = ()
    closed_by: str = ""
    """The form of a record that says that it is right again: for the device of its group `device`, without one for all
    devices. Also the start of a kernel closes what a rule with `closed_by` found."""
    after: Severity | None = None
    """The severity of what was closed; None: it is no finding."""
    least: int = 1
    """The number of records from which on they are a finding."""
    settle_seconds: float = 0.0
    """The time within which nothing closes it: a driver's start reports what failed before it is loaded."""
    is_usual_at_start: bool = False
    """True: healthy devices say so when their driver has just started."""
    witness: str = ""
    """The kind of what /proc or /sys shows while the fault lasts, by which a probe judges the live log; empty: no probe
    does. See laggard.probes.system.kernel_faults."""

    def commands_for(self, device: str) -> tuple[str, ...]:
        return tuple(command.replace("{device}", device) for command in self.commands)


LIVE_BEGINNINGS: Final = (
    *("nvme nvme", "I/O error, dev ", "blk_update_request: ", "print_req_error: ", "critical ", "sd ", "EXT4-fs "),
    *("Aborting journal", "XFS (", "BTRFS", "watchdog: ", "NMI watchdog: ", "rcu: ", "INFO: rcu_", "INFO: task "),
    *("BUG: ", "kernel BUG at ", "Oops", "Internal error: Oops", "general protection fault", "invalid opcode: "),
    *("divide error: ", "stack segment: ", "EDAC ", "mce: ", "CPU", "Memory failure: ", "[Hardware Error]", "{"),
    "Out of memory: Kill",
)
"""The beginnings of the records that the rules with a witness take, and of those that close them. So text of a user in
the middle of a record says nothing, and few records are searched."""
