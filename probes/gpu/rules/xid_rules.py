"""The meaning of the driver's Xid numbers, and what to do about each: one table for the probe and for `laggard
diagnose`.

Source: NVIDIA's Xid catalog for Ampere and newer (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Its
"immediate action" decides the severity: an Xid that asks to reset or reboot is critical, one that asks to restart the
application is an error of the application. Xids that are newer than the catalog: nverror.h of open-gpu-kernel-modules.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from laggard.kit.majority import majority
from laggard.kit.words import lazy_pattern
from laggard.model import Severity
from laggard.probes.gpu.model.driver_log import FALLOUT, RECOVERY_ACTION, XidLine
from laggard.probes.nvml.model import HANDLE_FAULTS, LOST_ERRORS, Gpu, Nvml
from laggard.probes.tables import meanings, rules


class RecoveryAction(NamedTuple):
    """`advice` completes "the driver asks to"."""

    advice: str
    severity: Severity


NOTHING: Final = 0


def explain_recovery_action(number: int) -> RecoveryAction:
    """Returns what the driver asks for after a fault, by a number other than 0: NVML's recovery action, or that of Xid
    154, which reports its change. What a newer driver asks for accuses nobody."""
    unknown = f"take action {number}, which laggard does not know", Severity.WARNING
    return RecoveryAction(*meanings("nvml", "recovery").get(str(number), unknown))


TABLE_VERSION: Final = "NVIDIA Xid catalog of 2025-10, nverror.h of driver 595.45"


class Action(enum.Enum):
    """The action that an Xid asks for. APPLICATION never fails a node; WATCH is a warning."""

    RESET = "reset the GPU"
    REBOOT = "reboot the node"
    REPAIR = "have the hardware looked at"
    WATCH = "watch it: reset the GPU when it is idle, and look for a cause if it comes back"
    APPLICATION = "look at the application: its own error, or the end of it"


class Xid(msgspec.Struct, frozen=True):
    meaning: str
    action: Action


@cache
def _table() -> Mapping[int, Xid]:
    """That of rules/xid.ini."""
    return {int(code): Xid(row.says, Action[row.kind.upper()]) for row in rules("xid") for code in row.pattern.split()}


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
    5 state whether they are fatal (`149, NETIR_LINK_EVT Fatal XC0 ... (0x004505c6 ...)`), or ended a channel."""
    if code in _NVLINK5 and (re.search(r"\bFatal\b", _PROGRAM.sub("", text)) or FALLOUT.search(text)):
        if code == _LINK_DOWN and "NETIR_LINK_" in text and _sub_code(text) in _LINK_DOWN_TO_IGNORE:
            return Xid("an NVLink was taken down by software, a user or the host", Action.WATCH)
        return Xid("fatal NVLink error", Action.RESET)
    if code == RECOVERY_ACTION and (found := _RECOVERY_REQUEST.search(text)):
        return _recovery(int(found[1], 16))
    return _table().get(code, _NOT_IN_TABLE)


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


# What says, beside a line of the log, that a GPU or an NVSwitch is still at fault. Pure.
#
# A line tells of a moment. The GPU may have been reset since, which leaves no line, or may not have needed it: a
# program whose kernel never ends can cause a context switch that times out. A second witness is the state of the device
# now, as the driver and the hardware give it, or the same error again and again on one GPU alone. No name counts that a
# program can choose, and the lines hold such names.

_MEMORY: Final = frozenset({48, 64, 95, 140, 171, 172})
_LINKS: Final = frozenset({74, 136, 155, *range(144, 151)})
_POWER: Final = frozenset({54})
_HELD_DOWN: Final = 0x08 | 0x80  # nvmlClocksEventReason: HwSlowdown, HwPowerBrakeSlowdown
_PID: Final = lazy_pattern(r"\bpid=(\d{1,10})\b")
_COMPLETED: Final = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_BAD_HEALTH: Final = {0: 0b01, 4: 0b01}  # of NVML_GPU_FABRIC_HEALTH_MASK: reduced bandwidth, an unhealthy route

REPEATED_TIMES: Final = 3
"""The number of events of one error, by as many processes, from which on they are a witness of each other."""

REPEATED_SECONDS: Final = 3600.0
"""The time between the first and the last of them: less is one job that fails and is started again."""


class Devices(msgspec.Struct, frozen=True):
    """PCI addresses, as sysfs writes them: all GPUs that this machine uses, and those lent to virtual machines.
    `confined`: only a part of them may be visible to NVML."""

    gpus: Collection[str]
    lent: Collection[str]
    confined: bool


class Witnesses(msgspec.Struct, frozen=True):
    """By device, as XidLine.device names it, and number: what confirms the error. `asks_for_nothing`: the devices of
    which the driver, asked now, wants nothing."""

    confirmed: Mapping[tuple[str, int], str]
    asks_for_nothing: frozenset[str]


def find_witnesses(lines: Iterable[XidLine], nvml: Nvml, devices: Devices) -> Witnesses:
    """`lines`: those that nothing has closed."""
    open_lines = tuple(lines)
    gpus = {gpu.bus_id: gpu for gpu in nvml.gpus if gpu.bus_id}
    confirmed: dict[tuple[str, int], str] = {}
    for line in open_lines:
        found = (
            _of_switch(nvml.gpus)
            if line.source == "SXid"
            else _of_gpu(line, gpus.get(f"{line.bus_id}.0"), nvml, devices) or _asked_in_the_log(line, gpus, open_lines)
        )
        if found := found or _repeated(line, open_lines):
            confirmed[line.device, line.code] = found
    quiet = frozenset(f"GPU {address}" for address, gpu in gpus.items() if gpu.recovery_action == NOTHING)
    return Witnesses(confirmed, quiet)


def _of_gpu(line: XidLine, gpu: Gpu | None, nvml: Nvml, devices: Devices) -> str:
    """Returns what the device itself says now; empty where that confirms nothing."""
    if nvml.hung:
        return "a call into the driver does not return"
    if gpu is None:
        return _absent(line, nvml, devices)
    if gpu.errors.get("handle") in HANDLE_FAULTS or LOST_ERRORS.intersection(gpu.errors.values()):
        return "it does not answer now"
    if gpu.recovery_action:
        advice, severity = explain_recovery_action(gpu.recovery_action)
        return f"the driver asks to {advice}" if severity is Severity.CRITICAL else ""
    if gpu.unrepairable_memory or (gpu.rows is not None and gpu.rows.failed):
        return "its memory cannot be repaired"
    if line.code in _LINKS and _has_links_down(gpu, nvml.gpus):
        return "it has NVLinks down"
    if line.code in _POWER and (gpu.clocks_event_reasons or 0) & _HELD_DOWN:
        return "its clocks are held down for want of power"
    if line.code in _MEMORY and gpu.recovery_action is None and gpu.ecc_volatile:
        return "its ECC counters agree"
    return ""


def _absent(line: XidLine, nvml: Nvml, devices: Devices) -> str:
    address = f"{line.bus_id}.0"
    if nvml.error:
        return f"NVML says {nvml.error}" if nvml.error in HANDLE_FAULTS else ""
    if devices.confined or address in devices.lent:
        return ""
    if nameless := [gpu.errors.get("handle", "") for gpu in nvml.gpus if gpu.bus_id is None]:
        return "a GPU does not answer now" if HANDLE_FAULTS.issuperset(nameless) else ""
    return "the driver no longer lists it" if address in devices.gpus else "it is no longer on the bus"


def _has_links_down(gpu: Gpu, gpus: Iterable[Gpu]) -> bool:
    up = [sum(other.links) for other in gpus if other.links is not None and other.name == gpu.name]
    return gpu.links is not None and sum(gpu.links) < (majority(up) or max(up))


def _asked_in_the_log(line: XidLine, gpus: Mapping[str, Gpu], lines: Iterable[XidLine]) -> str:
    """Returns the driver's own request, which Xid 154 reports and which holds until it reports another. A driver that
    can be asked now says it better."""
    gpu = gpus.get(f"{line.bus_id}.0")
    if gpu is not None and gpu.recovery_action is not None:
        return ""
    requests = [each for each in lines if (each.bus_id, each.code) == (line.bus_id, RECOVERY_ACTION)]
    if not requests:
        return ""
    xid = explain_xid(RECOVERY_ACTION, requests[-1].text)
    return xid.meaning if xid.action in (Action.RESET, Action.REBOOT) else ""


def _repeated(line: XidLine, lines: Sequence[XidLine]) -> str:
    """Returns that the error came again and again on this device, by other processes each time, and on no other: a bad
    program is mostly on several GPUs of its node, and moves."""
    same = [each for each in lines if (each.source, each.code) == (line.source, line.code)]
    mine = [each for each in same if each.bus_id == line.bus_id]
    times = [each.seconds for each in mine if each.seconds is not None]
    processes = {found[1] for each in mine if (found := _PID.match(each.text))}
    if len(mine) < len(same) or len(processes) < REPEATED_TIMES or len(times) < REPEATED_TIMES:
        return ""
    hours = (max(times) - min(times)) / 3600
    if hours * 3600 < REPEATED_SECONDS:
        return ""
    return f"it came {len(mine)} times in {hours:.0f} h, by {len(processes)} processes, on this GPU alone"


def _of_switch(gpus: Sequence[Gpu]) -> str:
    """Returns what the GPUs say of the switch that connects them. An A100 does not say how its connection is: there the
    line stands for itself."""
    for gpu in gpus:
        fabric = gpu.fabric
        if gpu.links is not None and not all(gpu.links):
            return f"GPU {gpu.index} has NVLinks down"
        if fabric is None or not fabric.state:
            return "the GPUs do not say how they are connected"
        mask = fabric.health_mask or 0
        bad = any(mask >> shift & 0b11 == value for shift, value in _BAD_HEALTH.items())
        if fabric.state != _COMPLETED or fabric.status or bad:
            return f"GPU {gpu.index} is not well connected"
    return "" if gpus else "the GPUs cannot be asked"
