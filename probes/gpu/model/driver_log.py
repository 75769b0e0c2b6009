"""The messages of NVIDIA's driver in the kernel's log about its devices: Xids of GPUs, SXids of NVSwitches, GPUs that
are gone, and what closed them since: a reset, or the driver loaded anew.

Sources: open-gpu-kernel-modules 595.45.04, osinit.c and osapi.c (GPUs off the bus, with and without an Xid), gpu.c
(Xid 154), common_nvswitch.h (SXids), nv.c (the line of a driver that is loaded).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from laggard.probes.host.kernel_log import KernelMessage, parse_messages

OFF_THE_BUS: Final = 79
RECOVERY_ACTION: Final = 154

_ADDRESS: Final = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)]*\): (\d{{1,5}})\b[,:]?\s*(.*)")
_SXID = re.compile(rf"nvidia-nvswitch\d*: SXid \(PCI:{_ADDRESS}[^)]*\): (\d{{1,6}}), ((?:Non-f|F)atal\b.*)")
_GONE = re.compile(rf"NVRM: GPU {_ADDRESS}\.\d: (GPU has fallen off the bus.*)")
_GONE_AT_START = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}\.\d")  # and two lines on, or all in one record:
_NOT_RESPONDING: Final = "fallen off the bus and is not responding"
_LOADED: Final = "NVRM: loading NVIDIA UNIX"
_RECOVERED = re.compile(r"\(([^)]*)\) to 0x0+ \(None\)")
_SAME_EVENT_SECONDS: Final = 10.0
_LINES_BETWEEN: Final = 3


class XidLine(NamedTuple):
    """One error. `closed_by`: what put its cause right since; empty where nothing did."""

    seconds: float | None  # after boot
    bus_id: str  # 0000:9b:00
    code: int
    text: str
    source: Literal["Xid", "SXid"] = "Xid"
    closed_by: str = ""

    @property
    def device(self) -> str:
        return f"{'GPU' if self.source == 'Xid' else 'NVSwitch'} {self.bus_id}.0"


def find_xids(log: str) -> list[XidLine]:
    """Finds the errors in a kernel log of any form that host/kernel_log.py reads, oldest first. PCI domains longer than
    four digits are shortened as in sysfs. A GPU that fell off the bus without an Xid counts as Xid 79."""
    lines: list[XidLine] = []
    loaded_at = 0  # as many lines came before the driver was loaded last
    reset_at: dict[str, int] = {}
    for line in _events(log):
        if line is None:
            loaded_at = len(lines)
        elif not _is_known(lines, line):
            if _was_reset(line):
                reset_at[line.bus_id] = len(lines)
            lines.append(line)
    return [line._replace(closed_by=_closed_by(place, line, loaded_at, reset_at)) for place, line in enumerate(lines)]


def _was_reset(line: XidLine) -> bool:
    """Returns whether the line reports that a GPU that had to be reset no longer has to be."""
    found = _RECOVERED.search(line.text) if line.code == RECOVERY_ACTION else None
    return bool(found) and bool(re.search("reset|reboot", found[1], re.IGNORECASE))  # type: ignore[index]


def _closed_by(place: int, line: XidLine, loaded_at: int, reset_at: dict[str, int]) -> str:
    if place < loaded_at:
        return "the driver was loaded anew"
    return "the GPU was reset" if place < reset_at.get(line.bus_id, 0) else ""


def _events(log: str) -> Iterator[XidLine | None]:
    """Yields the errors, and None where the driver was loaded."""
    address, lines_left = "", 0
    for message in parse_messages(log):
        text = message.text
        if "NVRM: " not in text and "SXid" not in text:  # most lines of most logs
            continue
        if _LOADED in text:
            yield None
        elif found := _XID.search(text):
            yield _line(message, found[1], int(found[2]), found[3])
        elif found := _SXID.search(text):
            yield _line(message, found[1], int(found[2]), found[3])._replace(source="SXid")
        elif found := _GONE.search(text):
            yield _line(message, found[1], OFF_THE_BUS, found[2])
        elif found := _GONE_AT_START.search(text):
            address, lines_left = found[1], _LINES_BETWEEN
        if address and lines_left and _NOT_RESPONDING in text:
            yield _line(message, address, OFF_THE_BUS, _NOT_RESPONDING)
            address = ""
        lines_left -= lines_left > 0


def _line(message: KernelMessage, address: str, code: int, text: str) -> XidLine:
    domain, _, rest = address.lower().partition(":")
    return XidLine(message.seconds, f"{domain[-4:]}:{rest}", code, text.strip())


def _is_known(lines: list[XidLine], line: XidLine) -> bool:
    """Returns whether the line repeats an error that was just logged: the driver logs a GPU that falls off the bus
    twice, with an Xid and without."""
    if line.code != OFF_THE_BUS:
        return False
    for earlier in reversed(lines[-20:]):
        if (earlier.code, earlier.bus_id) == (line.code, line.bus_id):
            known = earlier.seconds is not None and line.seconds is not None
            return not known or line.seconds - earlier.seconds <= _SAME_EVENT_SECONDS  # type: ignore[operator]
    return False
