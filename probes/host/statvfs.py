"""statvfs of mount points with a deadline: a dead file server is not waited for, since each server is asked by a
process of its own.

A process that hangs in the kernel may survive SIGKILL. It holds a socket whose name is made of its server, so that the
next query, from whatever process, finds it and starts no second one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import struct
import time
import zlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.processes import read_stat
from laggard.probes.host.kernel import StatvfsReply, Usage

_OK = "ok"


class _Query(NamedTuple):
    """The process that asks one server: the read end of the pipe that it answers on, and the mount points in the order
    in which it asks them."""

    pid: int
    pipe: int
    points: Sequence[str]
    received: bytearray


def query_statvfs(points: Mapping[str, Sequence[str]], seconds: float) -> dict[str, StatvfsReply]:
    """The replies by mount point, within `seconds`. `points`: the mount points by server. Where a server gives no
    answer for a mount point, the points after it are not asked."""
    started = time.monotonic()
    replies: dict[str, StatvfsReply] = {}
    queries = []
    for server, group in points.items():
        lock, age = _lock(server)
        if age >= seconds:
            replies.update(_no_replies(group, age))
        else:
            queries.append(_start(group, lock, seconds))
        if lock:
            lock.close()
    _receive(queries, started + seconds)
    for query in queries:
        replies.update(_replies(query, time.monotonic() - started))
        os.close(query.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(query.pid, signal.SIGKILL)
        os.waitpid(query.pid, os.WNOHANG)
    return replies


def _start(points: Sequence[str], lock: socket.socket | None, seconds: float) -> _Query:
    """Forks the process that asks for `points`. It inherits `lock` and holds it until it ends."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)  # in case the parent dies before it kills this process
            _ask(points, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    return _Query(pid, read_end, points, bytearray())


def _ask(points: Sequence[str], pipe: int) -> None:
    for point in points:
        try:
            os.statvfs(point)
            answer = _OK
        except OSError as error:
            answer = error.strerror or str(error)
        os.write(pipe, f"{answer}\n".encode())


def _receive(queries: Sequence[_Query], deadline: float) -> None:
    """Reads the pipes until all are closed, or until `deadline` (monotonic seconds)."""
    waiting = {query.pipe: query for query in queries}
    poller = select.poll()
    for pipe in waiting:
        poller.register(pipe, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for pipe, _ in poller.poll(left * 1000):
            data = os.read(pipe, 1 << 16)
            waiting[pipe].received.extend(data)
            if not data:
                poller.unregister(pipe)
                del waiting[pipe]


def _replies(query: _Query, waited_seconds: float) -> dict[str, StatvfsReply]:
    answers = query.received.decode().splitlines()
    replies = {
        point: StatvfsReply(error="" if answer == _OK else answer)
        for point, answer in zip(query.points, answers, strict=False)
    }
    return {**replies, **_no_replies(query.points[len(answers) :], waited_seconds)}


def _no_replies(points: Sequence[str], waited_seconds: float) -> dict[str, StatvfsReply]:
    """The first of `points` hangs; the others have not been asked."""
    first = {point: StatvfsReply(silent_seconds=round(waited_seconds, 3)) for point in points[:1]}
    rest = {point: StatvfsReply(error=f"not asked: {points[0]} of this server hangs") for point in points[1:]}
    return {**first, **rest}


def _lock(server: str) -> tuple[socket.socket | None, float]:
    """A socket for the process that asks `server` to hold, and 0; or no socket, and for how many seconds an earlier
    process has held it. No socket and 0: another query is under way, or another user has the name. Then this query
    goes on without a lock."""
    name = f"\0laggard/reach/{os.geteuid()}/{zlib.crc32(os.fsencode(server)):08x}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(1)
        return lock, 0.0
    except OSError:
        lock.close()
        return None, _holder_age(name)


def _holder_age(name: str) -> float:
    """Seconds since the start of the process that listens on `name`; 0 where it is another user's or has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.setblocking(False)
            client.connect(name)
            pid, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return 0.0
        stat = read_stat(pid)
    return stat.age_seconds if stat and uid == os.geteuid() else 0.0


_SECONDS: Final = 0.5  # of the two that a probe has
_MAX_FILES: Final = 200_000
_BLOCK_BYTES: Final = 512  # of st_blocks (stat(2))


def read_usage(point: str) -> Usage:
    """Walks the mount point `point`, the outermost folders first. What cannot be listed is left out."""
    deadline = time.monotonic() + _SECONDS
    root = os.stat(point)
    taken: Counter[str] = Counter()
    linked: set[int] = set()
    folders, files, complete = deque([point]), 0, True
    while folders:
        if files >= _MAX_FILES or time.monotonic() > deadline:
            complete = False
            break
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    files += 1
                    about = entry.stat(follow_symlinks=False)
                    if about.st_dev != root.st_dev or about.st_ino in linked:
                        continue
                    if about.st_nlink > 1 and not stat.S_ISDIR(about.st_mode):
                        linked.add(about.st_ino)
                    taken[str(about.st_uid)] += about.st_blocks * _BLOCK_BYTES
                    if stat.S_ISDIR(about.st_mode):
                        folders.append(entry.path)
                    if files >= _MAX_FILES or time.monotonic() > deadline:
                        break
        except OSError:
            complete = False
    return Usage(dict(taken), complete, bool(root.st_mode & stat.S_IWOTH))
