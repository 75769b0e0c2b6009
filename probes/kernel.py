"""What a probe asks of a machine that is not a file: the one list of it, asked live or as it was recorded.

A recorded machine keeps these answers in FACTS_PATH inside its tree, one JSON document of the shape of MachineFacts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

FACTS_PATH: Final = "/laggard/facts.json"


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


class MachineFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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


class LiveKernel:
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def time(self) -> float:
        return time.time()

    def file_system(self, path: str) -> FileSystem:
        answer = os.statvfs(path)
        return FileSystem(
            total_bytes=answer.f_blocks * answer.f_frsize,
            free_bytes=answer.f_bfree * answer.f_frsize,
            available_bytes=answer.f_bavail * answer.f_frsize,
            inodes=answer.f_files,
            inodes_free=answer.f_ffree,
            inodes_available=answer.f_favail,
        )

    def clock(self) -> KernelClock:
        from laggard.probes.timex import read_clock  # ctypes is slow to import and few need it

        return read_clock()
