"""The ring that `laggard agent --idle-rings` runs here, whose processes are no job's."""

from __future__ import annotations

from typing import Final

import msgspec

from laggard import wire
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.processes.stat import parse_stat

RUNNING_PATH: Final = "/run/laggard/rings/running.json"
"""The path of the file on a ring that runs here. Nobody but root and the user laggard can write there."""


class RunningRing(msgspec.Struct, frozen=True):
    """`session`: of all of its processes."""

    session: int


def own_ring(host: Host) -> int | None:
    """Returns the session of the ring that runs here; None: none does."""
    try:
        return wire.decode(host.read_bytes(RUNNING_PATH), RunningRing).session
    except (Unknown, wire.WireError):
        return None


def is_of_session(host: Host, pid: int, session: int | None) -> bool:
    """Whether the process is of that session."""
    if session is None:
        return False
    try:
        return parse_stat(host.read_bytes(f"/proc/{pid}/stat")).session == session
    except (Unknown, ValueError):
        return False
