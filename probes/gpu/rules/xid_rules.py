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
from typing import Final, NamedTuple

from laggard.kit.majority import majority
from laggard.kit.words import lazy_pattern
from laggard.model import Severity
from laggard.probes.gpu.model.driver_log import RECOVERY_ACTION, XidLine
from laggard.probes.nvml.model import HANDLE_FAULTS, LOST_ERRORS, Gpu, Nvml

# The action that the driver asks for after a fault: NVML's recovery action, and the Xid 154 that reports its change,
# have one table.
#
# Sources: nvml.h 13.1 (NVML_GPU_RECOVERY_ACTION_*; NVML's field and Xid 154 have the same numbers) and "GPU memory
# error management", recovery action flag. NVIDIA's own checks take a GPU out of service for each action but `recover
# IMEX domain`: the DRA driver for Kubernetes (TestIsEventNonFatal), nvidia-resiliency-ext (GPUHealthCheck).


class RecoveryAction(NamedTuple):
    """`advice` completes "the driver asks to"."""

    advice: str
    severity: Severity


NOTHING: Final = 0

_ACTIONS: Final = {
    1: RecoveryAction("reset the GPU", Severity.CRITICAL),
    2: RecoveryAction("reboot the node", Severity.CRITICAL),
    3: RecoveryAction("end the jobs that use peer-to-peer on it", Severity.CRITICAL),
    4: RecoveryAction("drain it and then reset it", Severity.CRITICAL),
    5: RecoveryAction("recover the IMEX domain", Severity.WARNING),
    6: RecoveryAction("reset its bus", Severity.CRITICAL),
    7: RecoveryAction("reboot the system", Severity.CRITICAL),
}


def explain_recovery_action(number: int) -> RecoveryAction:
    """Returns what a number other than 0 asks for. What a newer driver asks for accuses nobody."""
    return _ACTIONS.get(number, RecoveryAction(f"take action {number}, which laggard does not know", Severity.WARNING))


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
    152, 153, 160, 161,
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
    159: Xid("the driver of unified memory (UVM) met an error", Action.WATCH),
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


class Devices(NamedTuple):
    """PCI addresses, as sysfs writes them: all GPUs that this machine uses, and those lent to virtual machines.
    `confined`: only a part of them may be visible to NVML."""

    gpus: Collection[str]
    lent: Collection[str]
    confined: bool


class Witnesses(NamedTuple):
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
