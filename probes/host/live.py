"""Asks the kernel of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from laggard import wire
from laggard.probes.host.kernel import FileSystem, KernelClock, Pfc, StatvfsReply, Usage


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

    def usage(self, path: str) -> Usage:
        from laggard.probes.host.statvfs import read_usage  # for file systems that are nearly full alone

        return read_usage(path)

    def clock(self) -> KernelClock:
        from laggard.probes.host.adjtimex import read_clock  # ctypes is slow to import, and few runs need it

        try:
            return read_clock()
        except PermissionError as error:  # a unit's or container's filter of system calls
            from laggard.probes.host.reader import with_reader

            return wire.decode(with_reader(error, "clock"), KernelClock)

    def pfc(self, netdev: str) -> Pfc:
        from laggard.probes.host.dcb import read_pfc  # slow to import: sockets

        return read_pfc(netdev)

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]:
        from laggard.probes.host.statvfs import query_statvfs  # for machines with network mounts alone

        return query_statvfs(points, seconds)
