"""The messages of NVIDIA's driver in the kernel's log about its devices: Xids of GPUs, SXids of NVSwitches, GPUs that
are gone, and what closed them since: a reset, or the driver loaded anew.

Sources: open-gpu-kernel-modules 595.45.04, osinit.c and osapi.c (GPUs off the bus, with and without an Xid), gpu.c
(Xid 154), common_nvswitch.h (SXids), nv.c (the line of a driver that is loaded).

A message is the driver's where its record begins so. The text of other messages can be a user's: see
host/kernel_log.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from laggard.kit.words import lazy_pattern
from laggard.probes.host.kernel_log import KernelMessage, begins_with_users_text, messages_of

OFF_THE_BUS: Final = 79
RECOVERY_ACTION: Final = 154

TAKES_BACK: Final = {162: 163}
"""The Xids that say that an earlier one of the same GPU holds no more. Source: NVIDIA's Xid catalog, 162
(PSHC_REENGAGED) and 163 (PSHC_DISENGAGED), whose reset is not needed once the power-smoothing circuit is on again."""

TAKEN_BACK: Final = "a later Xid took it back"
LOADED_ANEW: Final = "the driver was loaded anew"
WAS_RESET: Final = "the GPU was reset"

_ADDRESS: Final = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
_XID = lazy_pattern(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}[^)]*\): (\d{{1,5}})\b[,:]?\s*(.*)")
FALLOUT: Final = lazy_pattern(r" caused by previous Xid (\d{1,5})$")
"""The end of the line of an Xid, as a rule 45, that another one brought about. The line of that one may be gone.
Source: the same, preemptiveRemovalPreviousXid."""
_SXID = lazy_pattern(rf"nvidia-nvswitch\d*: SXid \(PCI:{_ADDRESS}[^)]*\): (\d{{1,6}}), ((?:Non-f|F)atal\b.*)")
_GONE = lazy_pattern(rf"NVRM: GPU {_ADDRESS}\.\d: (GPU has fallen off the bus.*)")
_GONE_AT_START = lazy_pattern(rf"NVRM: The NVIDIA GPU {_ADDRESS}\.\d")  # and two lines on, or all in one record:
_NOT_RESPONDING: Final = "fallen off the bus and is not responding"
_BEGINNINGS: Final = ("NVRM: ", "nvidia-nvswitch")
_LOADED: Final = "NVRM: loading NVIDIA UNIX"
_PROBE_FAILED: Final = "NVRM: The NVIDIA probe routine failed"
_RECOVERED = lazy_pattern(r"recovery action changed from 0x[0-9a-fA-F]+ \(([^()]*)\) to 0x0+ \(None\)")
"""Longer than a process's name, which stands before it."""
_SAME_EVENT_SECONDS: Final = 10.0
_LINES_BETWEEN: Final = 3
_START_SECONDS: Final = 10.0
"""The time within which the driver's start reports what failed in it, and that it is loaded: it writes so after its
probe routine, and that line closes nothing of the same start."""
_START_LINES: Final = 16
"""The most errors that are taken as those of a start where the log has no times."""


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
    return xids_of(messages_of(log))


def xids_of(messages: Iterable[KernelMessage]) -> list[XidLine]:
    """Finds the errors among messages, as find_xids does."""
    lines: list[XidLine] = []
    failed: _FailedStart | None = None
    closers: dict[object, _Closer] = {}
    for event in _events(messages):
        if isinstance(event, _Start) and event.loaded:
            same_start = failed is not None and _within(failed.seconds, event.seconds, _START_SECONDS)
            closers["driver"] = _Closer(failed.first if failed is not None and same_start else len(lines), LOADED_ANEW)
            failed = None
        elif isinstance(event, _Start):
            failed = _FailedStart(event.seconds, _first_of_start(lines, event.seconds))
        elif not _is_known(lines, event):
            if _was_reset(event):
                closers[event.bus_id] = _Closer(len(lines), WAS_RESET)
            if event.source == "Xid" and event.code in TAKES_BACK:
                closers[event.device, TAKES_BACK[event.code]] = _Closer(len(lines), TAKEN_BACK)
            lines.append(event)
    return [line._replace(closed_by=_closed_by(place, line, closers)) for place, line in enumerate(lines)]


class _Closer(msgspec.Struct, frozen=True):
    """Closes the first `before` lines."""

    before: int
    how: str


class _Start(msgspec.Struct, frozen=True):
    """A start of the driver: whether it was loaded, or its probe routine failed."""

    seconds: float | None
    loaded: bool


class _FailedStart(msgspec.Struct, frozen=True):
    seconds: float | None
    first: int
    """The place of the first error of this start."""


def _within(earlier: float | None, later: float | None, seconds: float) -> bool:
    """Returns whether no more time went by; True where a time is not known."""
    return earlier is None or later is None or 0 <= later - earlier <= seconds


def _first_of_start(lines: Sequence[XidLine], seconds: float | None) -> int:
    first = len(lines)
    while first and len(lines) - first < _START_LINES and _within(lines[first - 1].seconds, seconds, _START_SECONDS):
        first -= 1
    return first


def _was_reset(line: XidLine) -> bool:
    """Returns whether the line reports that a GPU that had to be reset no longer has to be."""
    found = _RECOVERED.search(line.text) if line.code == RECOVERY_ACTION else None
    return bool(found) and bool(re.search("reset|reboot", found[1], re.IGNORECASE))  # type: ignore[index]


def _closed_by(place: int, line: XidLine, closers: Mapping[object, _Closer]) -> str:
    """`closers`: the last ones, of one error of a device, of all and of a bus."""
    found = [closers.get(key) for key in ((line.device, line.code), "driver", line.bus_id)]
    return next((closer.how for closer in found if closer is not None and place < closer.before), "")


def _events(messages: Iterable[KernelMessage]) -> Iterator[XidLine | _Start]:
    """Yields the errors, and where the driver was loaded or its start failed."""
    address, lines_left = "", 0
    for message in messages:
        text = message.text
        if not text.startswith(_BEGINNINGS) or begins_with_users_text(text):
            continue
        if text.startswith((_LOADED, _PROBE_FAILED)):
            yield _Start(message.seconds, text.startswith(_LOADED))
        elif found := _XID.match(text):
            cause = FALLOUT.search(found[3])
            yield _line(message, found[1], int(cause[1] if cause else found[2]), found[3])
        elif found := _SXID.match(text):
            yield _line(message, found[1], int(found[2]), found[3])._replace(source="SXid")
        elif found := _GONE.match(text):
            yield _line(message, found[1], OFF_THE_BUS, found[2])
        elif found := _GONE_AT_START.match(text):
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
    twice, with an Xid and without, and the cause of each channel's end."""
    if line.code != OFF_THE_BUS and not FALLOUT.search(line.text):
        return False
    for earlier in reversed(lines[-20:]):
        if (earlier.code, earlier.bus_id) == (line.code, line.bus_id):
            known = earlier.seconds is not None and line.seconds is not None
            return not known or line.seconds - earlier.seconds <= _SAME_EVENT_SECONDS  # type: ignore[operator]
    return False
