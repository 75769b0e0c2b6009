"""The interface of a machine, beside its files, that probes ask. LiveKernel asks the machine; RecordedKernel reads a
recording.

The constants are paths in the folder of a recorded machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

FACTS_PATH: Final = "/laggard/facts.json"
"""A JSON document of the shape of RecordedFacts."""
REPLIES_PATH: Final = "/laggard/replies.json"
"""The path of the document with a StatvfsReply by mount point."""
REFUSED_PATH: Final = "/laggard/refused.json"
"""The file of what could not be read, and of the kernel's error messages: `{"read /PATH": "Permission denied"}`."""
PFC_PATH: Final = "/laggard/pfc.json"
"""Priority flow control by network device: `{"eth0": {"enabled": 8, "capable": 8}}`, or null where the driver does not
support it."""


class FileSystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """statvfs of a mount point. `available` is what unprivileged processes may still use. 0 `inodes`: the file system
    does not count them."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    inodes_available: int


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The users whose files fill a file system: bytes by uid. `complete`: whether all files were seen; those that are
    deleted and still open never are. `for_all`: whether every user may write to its topmost folder."""

    bytes_by_user: dict[str, int]
    complete: bool
    for_all: bool


class KernelClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that adjtimex(2) returns: the return value (`state`), the STA_* bits (`status`), and offset and errors
    in seconds."""

    state: int
    status: int
    offset_seconds: float
    maximum_error_seconds: float
    estimated_error_seconds: float


class StatvfsReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of statvfs on a mount point: success where both fields are empty. `error`: the kernel's message;
    `silent_seconds`: for how long there has been no answer."""

    error: str = ""
    silent_seconds: float = 0.0


class Pfc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Priority flow control of a network device. `enabled` has a bit for each priority with flow control; `capable` is
    the number of priorities that may have it at once."""

    enabled: int
    capable: int

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(priority for priority in range(8) if self.enabled >> priority & 1)


class RecordedFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answers of a machine that are not files. `errors` holds the calls that failed, "statvfs /mnt" or "adjtimex",
    with the kernel's message."""

    laggard_machine: int = 1  # the version of this document
    time: float  # Unix time of the recording
    environ: dict[str, str] = {}
    file_systems: dict[str, FileSystem] = {}  # by mount point
    usages: dict[str, Usage] = {}  # by mount point, of those that are nearly full
    clock: KernelClock | None = None
    errors: dict[str, str] = {}


class Kernel(Protocol):
    """Each method raises OSError where the kernel refuses. Host has a method of the same name, with its meaning."""

    def environ(self) -> Mapping[str, str]: ...

    def time(self) -> float: ...

    def file_system(self, path: str) -> FileSystem: ...

    def usage(self, path: str) -> Usage: ...

    def clock(self) -> KernelClock: ...

    def pfc(self, netdev: str) -> Pfc: ...

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]: ...
