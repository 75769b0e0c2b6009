"""The meaning of the driver's Xid numbers, and what to do about each: one table for the probe and for `laggard
diagnose`.

Source: NVIDIA's Xid catalog for Ampere and newer (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Its
"immediate action" decides the severity: an Xid that asks to reset or reboot is critical, one that asks to restart the
application is an error of the application. Xids that are newer than the catalog: nverror.h of open-gpu-kernel-modules.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from laggard.model import Severity
from laggard.probes.gpu.model.driver_log import RECOVERY_ACTION
from laggard.probes.gpu.rules.recovery_action import NOTHING, explain_recovery_action
from laggard.text.lazy_pattern import lazy_pattern

TABLE_VERSION: Final = "NVIDIA Xid catalog of 2025-10, nverror.h of driver 595.45"


class Action(enum.Enum):
    """The action that an Xid asks for. APPLICATION never fails a node; WATCH is a warning."""

    RESET = "reset the GPU"
    REBOOT = "reboot the node"
    REPAIR = "have the hardware looked at"
    WATCH = "watch it: reset the GPU when it is idle, and look for a cause if it comes back"
    APPLICATION = "look at the application: its own error, or the end of it"


class Xid(NamedTuple):
    meaning: str
    action: Action


_APPLICATION: Final = {
    8: "the GPU stopped processing",
    11: "invalid or corrupted push buffer",
    13: "exception of the graphics engine (an illegal address or instruction)",
    25: "illegal push buffer",
    31: "page fault of the GPU's memory",
    32: "corrupted push buffer",
    43: "a channel was reset after a fault of its program",
    44: "fault in a context switch",
    45: "a channel was removed after an earlier error, or by the end of its program",
    60: "exception of the video processor",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    68: "exception of the video decoder",
    69: "class error of the graphics engine",
    80: "corrupted data sent to the GPU",
    86: "exception of the optical-flow engine",
    137: "a peer's access over NVLink was refused",
    141: "error of CUDA's fast path",
    162: "the power-smoothing circuit is on again",
    174: "a channel was reset and its program ended",
}
_ENGINES: Final = (
    *range(37, 42), *range(70, 73), *range(75, 78), *range(82, 86), 88, 89, *range(96, 108), *range(126, 136), 139, 142
)  # fmt: skip
"""Copy, video and image engines, and messages to ignore by NVIDIA's catalog: errors of a job, not of the node."""

_TABLE: Final[dict[int, Xid]] = {
    **{code: Xid("error of an engine under a program", Action.APPLICATION) for code in _ENGINES},
    **{code: Xid(meaning, Action.APPLICATION) for code, meaning in _APPLICATION.items()},
    46: Xid("the GPU stopped processing", Action.RESET),
    48: Xid("an error in memory that ECC cannot correct", Action.RESET),
    54: Xid("auxiliary power is not connected", Action.REPAIR),
    62: Xid("the internal micro-controller halted", Action.RESET),
    63: Xid("a faulty row of memory was remapped", Action.WATCH),
    64: Xid("a faulty row of memory could not be remapped", Action.RESET),
    74: Xid("NVLink error", Action.RESET),
    78: Xid("a virtual GPU did not start", Action.WATCH),
    79: Xid("the GPU has fallen off the bus", Action.REBOOT),
    92: Xid("many memory errors that ECC corrects", Action.WATCH),
    93: Xid("wear of the InfoROM", Action.WATCH),
    94: Xid("a memory error, contained to one program", Action.WATCH),
    95: Xid("a memory error that could not be contained", Action.RESET),
    109: Xid("a context switch timed out", Action.RESET),
    110: Xid("security fault", Action.RESET),
    119: Xid("the GPU's firmware (GSP) gives no answer", Action.RESET),
    120: Xid("error of the GPU's firmware (GSP)", Action.RESET),
    121: Xid("error of the link between chips (C2C)", Action.WATCH),
    136: Xid("an NVLink could not be trained", Action.RESET),
    140: Xid("a memory error that could not be recovered from", Action.RESET),
    143: Xid("the GPU could not be initialised", Action.RESET),
    **{code: Xid("NVLink error", Action.WATCH) for code in range(144, 151)},  # fatal ones say so in the text
    151: Xid("keys could not be exchanged", Action.WATCH),
    154: Xid("the driver asks for recovery", Action.RESET),
    155: Xid("NVLink error, defined by software", Action.RESET),
    156: Xid("a part of the GPU was retired, from the next reset on", Action.RESET),
    157: Xid("a part of the GPU could not be retired", Action.REPAIR),
    158: Xid("fatal timeout of the GPU", Action.RESET),
    163: Xid("the power-smoothing circuit was switched off", Action.WATCH),
    164: Xid("the power-smoothing circuit nears the end of its life", Action.WATCH),
    165: Xid("the power-smoothing circuit is at the end of its life", Action.WATCH),
    166: Xid("error of NVLink's encryption", Action.WATCH),
    167: Xid("fatal timeout on PCIe", Action.WATCH),
    168: Xid("less memory than the GPU should have", Action.WATCH),
    169: Xid("the internal micro-controller for security (SEC2) halted", Action.RESET),  # as 62, another controller
    170: Xid("error of NVLink's encryption", Action.WATCH),
    171: Xid("uncorrectable error in DRAM (goes with Xid 48)", Action.WATCH),
    172: Xid("uncorrectable error in SRAM (goes with Xid 48)", Action.WATCH),
    173: Xid("a link between chips (C2C) failed", Action.RESET),
    175: Xid("the memory subsystem gives no answer", Action.RESET),  # GSP's timeout, for which the driver asks a reset
    176: Xid("PCIe errors that were corrected", Action.WATCH),
}
_NOT_IN_TABLE: Final = Xid("not in laggard's table", Action.WATCH)
_NVLINK5: Final = range(144, 151)
_PROGRAM: Final = lazy_pattern(r"name=.{0,15}, ")
"""The name of the program, which it chooses itself and which may hold any word."""

_SUB_CODE = lazy_pattern(r"\(0x([0-9a-fA-F]{1,8})\b")  # intrinfo, the first of the numbers in parentheses
_LINK_DOWN: Final = 149
_LINK_DOWN_TO_IGNORE: Final = frozenset({0b100110, 0b101000})
"""Sub-codes of NETIR_LINK_DOWN whose immediate action is IGNORE in the catalog: software, a user or the host took the
link down. Their text has `Fatal` all the same."""

_RECOVERY_REQUEST = lazy_pattern(r"\bto 0x([0-9a-fA-F]{1,8}) \(")
_LINK_WENT_DOWN: Final = 20034


def explain_xid(code: int, text: str) -> Xid:
    """Returns what the Xid means. The text of its log line counts for some: Xid 154 names the action, errors of NVLink
    5 state whether they are fatal (`149, NETIR_LINK_EVT Fatal XC0 ... (0x004505c6 ...)`)."""
    if code in _NVLINK5 and re.search(r"\bFatal\b", _PROGRAM.sub("", text)):
        if code == _LINK_DOWN and "NETIR_LINK_" in text and _sub_code(text) in _LINK_DOWN_TO_IGNORE:
            return Xid("an NVLink was taken down by software, a user or the host", Action.WATCH)
        return Xid("fatal NVLink error", Action.RESET)
    if code == RECOVERY_ACTION and (found := _RECOVERY_REQUEST.search(text)):
        return _recovery(int(found[1], 16))
    return _TABLE.get(code, _NOT_IN_TABLE)


def explain_sxid(code: int, text: str) -> Xid:
    """Returns what the error of an NVSwitch means, by its text: `Fatal, Link 30 LTSSM Fault Up` or `Non-fatal, ...`.
    Source: the Fabric Manager user guide, tables of fatal and non-fatal SXids."""
    if not text.startswith("Fatal"):
        return Xid("an error that the NVSwitch recovered from", Action.APPLICATION)
    if code == _LINK_WENT_DOWN:
        return Xid("an NVLink of the NVSwitch went down; whether it still is, the probe nvlink tells", Action.WATCH)
    return Xid("fatal error of the NVSwitch", Action.RESET)


def _sub_code(text: str) -> int | None:
    """Returns bits 20 to 25 of intrinfo, by which the catalog lists errors of NVLink 5."""
    found = _SUB_CODE.search(text)
    return int(found[1], 16) >> 20 & 0x3F if found else None


def _recovery(number: int) -> Xid:
    if number == NOTHING:
        return Xid("the driver asks for nothing any more", Action.APPLICATION)
    advice, severity = explain_recovery_action(number)
    action = Action.REBOOT if "reboot" in advice else Action.RESET
    return Xid(f"the driver asks to {advice}", action if severity is Severity.CRITICAL else Action.WATCH)
