"""Asks mount points for their statvfs without waiting for a dead server: each server is asked in a process of its own.

A process that hangs in the kernel may survive SIGKILL. It holds a socket whose name tells the server, so that the next
look, from whatever process, finds it and starts no other.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from laggard.probes.host.kernel import StatvfsReply

_OK = "ok"


class _Asker(NamedTuple):
    """One server's process, the end of the pipe that it answers on, and the mount points in the order it asks."""

    pid: int
    pipe: int
    points: Sequence[str]
    heard: bytearray


def query_statvfs(points: Mapping[str, Sequence[str]], seconds: float) -> dict[str, StatvfsReply]:
    """By mount point. Of a server that is silent, the points behind the one that hangs are not asked."""
    started = time.monotonic()
    replies: dict[str, StatvfsReply] = {}
    askers = []
    for server, group in points.items():
        guard, age = _claim(server)
        if age >= seconds:
            replies.update(_silent(group, age))
        else:
            askers.append(_start(group, guard, seconds))
        if guard:
            guard.close()
    _listen(askers, started + seconds)
    for asker in askers:
        replies.update(_heard(asker, time.monotonic() - started))
        os.close(asker.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(asker.pid, signal.SIGKILL)
        os.waitpid(asker.pid, os.WNOHANG)
    return replies


def _start(points: Sequence[str], guard: socket.socket | None, seconds: float) -> _Asker:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)  # for the case that nobody is left to end it
            _ask(points, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    return _Asker(pid, read_end, points, bytearray())


def _ask(points: Sequence[str], pipe: int) -> None:
    for point in points:
        try:
            os.statvfs(point)
            answer = _OK
        except OSError as error:
            answer = error.strerror or str(error)
        os.write(pipe, f"{answer}\n".encode())


def _listen(askers: Sequence[_Asker], deadline: float) -> None:
    waiting = {asker.pipe: asker for asker in askers}
    poller = select.poll()
    for pipe in waiting:
        poller.register(pipe, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for pipe, _ in poller.poll(left * 1000):
            data = os.read(pipe, 1 << 16)
            waiting[pipe].heard.extend(data)
            if not data:
                poller.unregister(pipe)
                del waiting[pipe]


def _heard(asker: _Asker, waited: float) -> dict[str, StatvfsReply]:
    answers = asker.heard.decode().splitlines()
    replies = {
        point: StatvfsReply(error="" if answer == _OK else answer)
        for point, answer in zip(asker.points, answers, strict=False)
    }
    return {**replies, **_silent(asker.points[len(answers) :], waited)}


def _silent(points: Sequence[str], seconds: float) -> dict[str, StatvfsReply]:
    first = {point: StatvfsReply(silent_seconds=round(seconds, 3)) for point in points[:1]}
    return {
        **first,
        **{point: StatvfsReply(error=f"not asked: {points[0]} of this server hangs") for point in points[1:]},
    }


def _claim(server: str) -> tuple[socket.socket | None, float]:
    """A socket that this server's process is to hold, or how many seconds ago one was started that still does. Both
    nothing where another look is under way, or somebody else has the name: then this one goes on unmarked."""
    name = f"\0laggard/reach/{os.geteuid()}/{zlib.crc32(os.fsencode(server)):08x}"
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guard.bind(name)
        guard.listen(1)
        return guard, 0.0
    except OSError:
        guard.close()
        return None, _age(name)


def _age(name: str) -> float:
    """Seconds since the process that listens there was started; 0 where it is not ours or has gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.setblocking(False)
            asked.connect(name)
            pid, uid, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks = int(file.read().rpartition(b")")[2].split()[19])  # starttime, proc_pid_stat(5)
        except (OSError, ValueError, IndexError):
            return 0.0
    if uid != os.geteuid():
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
