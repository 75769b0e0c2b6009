"""What a probe asks of a machine that is not a file: the one list of it, asked live or as it was recorded.

A recorded machine keeps these answers in FACTS_PATH inside its tree, one JSON document of the shape of RecordedFacts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

FACTS_PATH: Final = "/laggard/facts.json"
REPLIES_PATH: Final = "/laggard/replies.json"
"""Of a recorded machine: StatvfsReply by mount point."""
REFUSED_PATH: Final = "/laggard/refused.json"
"""Of a recorded machine: the kernel's words for what could not be read, `{"read /PATH": "Permission denied"}`."""
PFC_PATH: Final = "/laggard/pfc.json"
"""Of a recorded machine: priority flow control by network device, `{"eth0": {"enabled": 8, "capable": 8}}`; null: the
driver knows nothing of it."""


class FileSystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """statvfs of a mount point. `available` is what unprivileged processes may still take; 0 inodes: not counted."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    inodes_available: int


class KernelClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What adjtimex(2) says: the return value (`state`), the STA_* bits (`status`) and the errors in seconds."""

    state: int
    status: int
    offset_seconds: float
    maximum_error_seconds: float
    estimated_error_seconds: float


class StatvfsReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What statvfs of a mount point came to. `error`: the kernel's words; `silent_seconds`: how long it has been
    waited for in vain."""

    error: str = ""
    silent_seconds: float = 0.0


class Pfc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network device's: `enabled` has a bit for each priority with flow control; `capable` is how many may."""

    enabled: int
    capable: int

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(priority for priority in range(8) if self.enabled >> priority & 1)


class RecordedFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that is not a file. `errors` holds what the machine refused: "statvfs /mnt" or "adjtimex", and why."""

    laggard_machine: int = 1  # the version of this document
    time: float  # Unix time of the recording
    environ: dict[str, str] = {}
    file_systems: dict[str, FileSystem] = {}  # by mount point
    clock: KernelClock | None = None
    errors: dict[str, str] = {}


class Kernel(Protocol):
    """Each method raises OSError with the kernel's reason."""

    def environ(self) -> Mapping[str, str]: ...

    def time(self) -> float: ...

    def file_system(self, path: str) -> FileSystem: ...

    def clock(self) -> KernelClock: ...

    def pfc(self, netdev: str) -> Pfc: ...

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]: ...
