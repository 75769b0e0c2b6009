"""Where looks are kept between processes (the gate is a new one each time): one small file, the runner's alone.

Nothing here fails a run. A directory that cannot be written, is somebody else's or is open to others is not used, and
the report says so; a file that is damaged, or of another boot, is no last look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.probes.errors import Missing, Unknown
from laggard.probes.host.counter_history import FIRST_LOOK, Look, Past, add
from laggard.probes.host.host import Host
from laggard.probes.runner.state_file import MOST_BYTES, read_state, replace_state

FILE_NAME: Final = "last_look.json"
RECORDED_PATH: Final = f"/laggard/{FILE_NAME}"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_NO_COUNTING: Final = "how counters grow cannot be known: "


class LastLooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: the looks of one boot, by probe."""

    boot_id: str
    probes: dict[str, tuple[Look, ...]] = {}
    laggard_last_look: int = 1  # the version of this document


class Memory:
    """The looks known at the start of a run; `keep` adds what its probes saw."""

    def __init__(self, host: Host) -> None:
        self._recorded = host.recorded
        self._uptime, self._why_none, self._known = 0.0, FIRST_LOOK, LastLooks("")
        try:
            self._known = LastLooks(host.read(_BOOT_ID).strip())
            self._uptime = _uptime(host)
            self._recall(_recorded(host) if host.recorded else read_state(FILE_NAME))
        except Unknown as error:
            self._why_none = _NO_COUNTING + str(error)

    def _recall(self, data: bytes) -> None:
        try:
            found = wire.decode(data, LastLooks) if data else self._known
        except wire.WireError as error:
            self._why_none = f"{FIRST_LOOK}; the last one is damaged: {error}"
            return
        if found.boot_id == self._known.boot_id:
            self._known = found
        else:
            self._why_none = f"{FIRST_LOOK}; the last one was before the machine was started anew"

    def past(self, probe: str) -> Past:
        looks = sorted(self._known.probes.get(probe, ()), key=lambda look: look.uptime)
        return Past(self._uptime, tuple(look for look in looks if look.uptime < self._uptime), self._why_none)

    def keep(self, seen: Mapping[str, Mapping[str, int]]) -> str:
        """Keep what probes remember. Returns why that is not possible, or nothing. A recorded machine is left alone."""
        if self._recorded or not seen or not self._uptime:
            return ""
        new = {name: add(self.past(name).looks, Look(self._uptime, dict(counters))) for name, counters in seen.items()}
        data = wire.encode(LastLooks(self._known.boot_id, {**self._known.probes, **new}))
        if len(data) > MOST_BYTES:
            return f"{_NO_COUNTING}{len(data)} bytes of counters are too many to keep"
        try:
            replace_state(FILE_NAME, data)
        except Unknown as error:
            return _NO_COUNTING + str(error)
        return ""


def _uptime(host: Host) -> float:
    """Seconds since boot: wall clocks are set, back too."""
    text = host.read("/proc/uptime")
    try:
        uptime = float(text.split()[0])
    except (ValueError, IndexError):
        uptime = 0.0
    if not 0 < uptime < 1e12:
        raise Unknown("/proc/uptime holds no number of seconds")
    return uptime


def _recorded(host: Host) -> bytes:
    try:
        return host.read_bytes(RECORDED_PATH)
    except Missing:
        return b""
