"""Keeps the counters' snapshots between processes (the gate is a new one each time), in one small file.

Nothing here fails a run. A directory that cannot be written, or that other users own or may write, is not used, and
the report says so. A file that is damaged, or from another boot, counts as no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.counter_history import NO_SNAPSHOT, CounterHistory, CounterSnapshot, add_snapshot
from laggard.probes.host.host import Host
from laggard.probes.runner.state_file import MAX_BYTES, read_state, replace_state

FILE_NAME: Final = "last_look.json"
RECORDED_PATH: Final = f"/laggard/{FILE_NAME}"
_UNAVAILABLE: Final = "how counters increase cannot be known: "


class HistoryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content: the snapshots of one boot, by probe."""

    boot_id: str
    probes: dict[str, tuple[CounterSnapshot, ...]] = {}
    laggard_last_look: int = 1  # the version of this document


class HistoryStore:
    """The snapshots that were saved before this run; `save` adds those of this run."""

    def __init__(self, host: Host) -> None:
        self._recorded = host.recorded
        self._uptime, self._why_empty, self._saved = 0.0, NO_SNAPSHOT, HistoryFile("")
        try:
            self._saved = HistoryFile(host.boot_id())
            self._uptime = _uptime(host)
            self._load(_recorded_file(host) if host.recorded else read_state(FILE_NAME))
        except Unknown as error:
            self._why_empty = _UNAVAILABLE + str(error)

    def _load(self, data: bytes) -> None:
        try:
            loaded = wire.decode(data, HistoryFile) if data else self._saved
        except wire.WireError as error:
            self._why_empty = f"{NO_SNAPSHOT}; the file of earlier ones is damaged: {error}"
            return
        if loaded.boot_id == self._saved.boot_id:
            self._saved = loaded
        else:
            self._why_empty = f"{NO_SNAPSHOT}; the machine was rebooted since the last one"

    def history(self, probe: str) -> CounterHistory:
        """The snapshots of `probe` that are older than this run."""
        snapshots = sorted(self._saved.probes.get(probe, ()), key=lambda snapshot: snapshot.uptime)
        earlier = tuple(snapshot for snapshot in snapshots if snapshot.uptime < self._uptime)
        return CounterHistory(self._uptime, earlier, self._why_empty)

    def save(self, counters: Mapping[str, Mapping[str, int]]) -> str:
        """Saves this run's counters, by probe. Returns why that is not possible, or an empty text. The recording of a
        machine is left as it is."""
        if self._recorded or not counters or not self._uptime:
            return ""
        new = {name: self._with_new_snapshot(name, values) for name, values in counters.items()}
        data = wire.encode(HistoryFile(self._saved.boot_id, {**self._saved.probes, **new}))
        if len(data) > MAX_BYTES:
            return f"{_UNAVAILABLE}{len(data)} bytes of counters are too many to save"
        try:
            replace_state(FILE_NAME, data)
        except Unknown as error:
            return _UNAVAILABLE + str(error)
        return ""

    def _with_new_snapshot(self, probe: str, counters: Mapping[str, int]) -> tuple[CounterSnapshot, ...]:
        return add_snapshot(self.history(probe).snapshots, CounterSnapshot(self._uptime, dict(counters)))


def _uptime(host: Host) -> float:
    """Seconds since boot. A wall clock would not do: it can be set back."""
    text = host.read("/proc/uptime")
    try:
        uptime = float(text.split()[0])
    except (ValueError, IndexError):
        uptime = 0.0
    if not 0 < uptime < 1e12:
        raise Unknown("/proc/uptime holds no number of seconds")
    return uptime


def _recorded_file(host: Host) -> bytes:
    try:
        return host.read_bytes(RECORDED_PATH)
    except NotFound:
        return b""
