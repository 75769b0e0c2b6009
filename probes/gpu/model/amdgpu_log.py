"""The messages of amdgpu in the kernel's log, as events of a GPU, and what closed them since: a reset, or the driver
loaded anew. A message is the driver's where its record begins so: see host/kernel_log.py."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from laggard.kit.words import compiled
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.driver_log import LOADED_ANEW, WAS_RESET
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import KernelMessage, begins_with_users_text, messages_of
from laggard.probes.probe import rules

# What amdgpu writes to the kernel's log, by kind: the live probes and `laggard diagnose` read the same table. Pure.
#
# Sources, of Linux and ROCm's driver 6.14 (drivers/gpu/drm/amd): amdgpu/amdgpu_ras.c (uncorrectable and deferred
# errors, poison, errors at boot), amdgpu_umc.c, amdgpu_ras_eeprom.c and ras/rascore/ras_eeprom.c (bad pages and their
# threshold), amdgpu_xgmi.c, amdgpu_job.c (ring timeouts), amdgpu_device.c (resets, lost from the bus), amdgpu_mes.c,
# amdkfd/kfd_device_queue_manager.c, gmc_v9_0.c (page faults), pm/swsmu/smu_cmn.c (SMU). Newer drivers put the number of
# a RAS event before a message, as `{1}`.


class Kind(enum.Enum):
    """A kind of message. The value is what a live finding says of the GPU."""

    XGMI = "reported an uncorrectable error of its XGMI links (RAS)"
    XGMI_PCS = "reported an error of its XGMI links"
    XGMI_TRAINING = "did not train its links to the other GPUs at boot"
    UNCORRECTABLE = "reported uncorrectable errors of its memory or blocks (RAS)"
    FATAL = "stopped for an uncorrectable error (RAS)"
    POISON = "read memory that an uncorrectable error had damaged (RAS poison)"
    DEFERRED = "found uncorrectable errors in memory that nobody had used (RAS, deferred)"
    BOOT = "failed a test at boot"
    NEAR_THRESHOLD = "has nearly as many bad pages of memory as its driver allows"
    THRESHOLD = "has more bad pages of memory than its driver allows"
    RESET_FAILED = "could not be reset by its driver"
    LOST = "was lost from the PCIe bus"
    NOT_STARTED = "could not be started by its driver"
    RING = "did not end its work (ring timeout)"
    SCHEDULER = "had a scheduler that did not answer (MES or HWS)"
    SMU = "had power firmware that did not answer (SMU)"
    RESET_BEGUN = "was being reset by its driver, which did not say how that ended"
    RESET_DONE = "was reset by its driver"
    PAGE_FAULT = "met a program's access to an address that is not mapped"


class AmdgpuMessage(NamedTuple):
    """`word` is a part of every message that the pattern takes: few are searched. The pattern begins anywhere."""

    kind: Kind
    word: str
    pattern: str


@cache
def amdgpu_messages(live: bool = False) -> tuple[AmdgpuMessage, ...]:
    """The messages that say something of a GPU's health, of rules/amdgpu.ini, with those that only the live probe asks
    for where `live`; of several that take one record the first counts."""
    rows = [row for row in rules("amdgpu") if live or "live" not in row.more]
    return tuple(AmdgpuMessage(Kind[row.kind.upper()], row.says, row.pattern) for row in rows)


DRIVER_LOADED: Final = "[drm] amdgpu kernel modesetting enabled"
"""The beginning of what the driver writes when its module is loaded (amdgpu_drv.c)."""

BEGINNINGS: Final = ("amdgpu ", "amdgpu: ", "[drm:amdgpu", "[drm] amdgpu ")
"""The beginnings of the driver's messages."""


MAX_EVENTS: Final = 4096
"""The most events that are kept of one log, the newest ones."""

_UNTOUCHED_BY_A_RESET: Final = frozenset({Kind.THRESHOLD, Kind.NEAR_THRESHOLD, Kind.LOST, Kind.RESET_DONE})


class AmdgpuEvent(NamedTuple):
    """`seconds`: after boot; None where the log has no times. `address`: empty where the message names no GPU."""

    seconds: float | None
    address: str
    kind: Kind
    text: str
    closed_by: str = ""


def find_amdgpu_events(log: str) -> list[AmdgpuEvent]:
    """Finds the events in a kernel log of any form that host/kernel_log.py reads, oldest first."""
    events: list[AmdgpuEvent] = []
    for event in _events(messages_of(log)):
        if event is None:
            events = [_closed(each, LOADED_ANEW) for each in events]
        elif event.kind is Kind.RESET_DONE:
            events = [_after_reset(each, event.address) for each in events]
            events.append(event)
        else:
            events.append(event)
        events = events[-MAX_EVENTS:]
    return events


def read_amdgpu_events(host: Host) -> tuple[list[AmdgpuEvent], str]:
    """Returns the events in the machine's log, and why it cannot be read; empty where it can."""
    try:
        return find_amdgpu_events(host.kernel_log()), ""
    except Unknown as error:
        return [], str(error)


def open_kinds(events: Iterable[AmdgpuEvent], address: str) -> frozenset[Kind]:
    """Returns the kinds of a GPU's events that nothing has closed."""
    return frozenset(event.kind for event in events if event.address == address and not event.closed_by)


_UNUSABLE: Final = {
    Kind.RESET_FAILED: "the driver could not reset it",
    Kind.RESET_BEGUN: "the driver's reset of it has not ended",
    Kind.LOST: "it was lost from the bus",
    Kind.THRESHOLD: "it has more bad pages than its driver allows",
}
"""The kinds of open events after which a GPU takes no new work."""


def why_unusable(kinds: Collection[Kind]) -> str:
    """Returns why a GPU with these open events takes no new work; empty where nothing shows that."""
    return next((words for kind, words in _UNUSABLE.items() if kind in kinds), "")


def _after_reset(event: AmdgpuEvent, address: str) -> AmdgpuEvent:
    is_its = event.address in ("", address) and event.kind not in _UNTOUCHED_BY_A_RESET
    return _closed(event, WAS_RESET) if is_its else event


def _closed(event: AmdgpuEvent, how: str) -> AmdgpuEvent:
    is_kept = event.closed_by or event.kind in (Kind.THRESHOLD, Kind.NEAR_THRESHOLD)
    return event if is_kept else event._replace(closed_by=how)


def _events(messages: Iterable[KernelMessage]) -> Iterator[AmdgpuEvent | None]:
    """Yields the events; None where the driver was loaded."""
    for message in messages:
        text = message.text
        if not text.startswith(BEGINNINGS) or begins_with_users_text(text):
            continue
        if text.startswith(DRIVER_LOADED):
            yield None
            continue
        for kind, word, pattern in amdgpu_messages(live=True):
            if word in text and (found := compiled(pattern).search(text)):
                address = (found.groupdict().get("device") or "").lower()
                yield AmdgpuEvent(message.seconds, address, kind, text[:200])
                break
