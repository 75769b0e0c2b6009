"""Work on other users' processes, done in a child process that is killed where it comes to a stop.

A process can make everybody wait who reads its environment, its command line or its map of memory: its memory is locked
meanwhile, and a file system of its own (FUSE) may keep it so for ever. A thread that waits there cannot be ended; a
process can. There is one child for a whole sweep over processes, and another for what is left after a stop.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import select
import signal
import stat
import struct
import time
import warnings
from _thread import allocate_lock
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from laggard.kit.processes import read_stat
from laggard.kit.users import ACCOUNTS
from laggard.kit.words import lazy_pattern
from laggard.probes.host.watchdog import Watchdog

SILENCE_SECONDS: Final = 0.3
"""The time for one process; thousands of them are read in that."""

_LOOKS: Final = 4
"""The number of looks of the parent, within the time for one process, whether the child has begun with another."""

_RESULT, _ERROR = b"R", b"E"
_HEAD: Final = struct.Struct("<cI")
_KEPT_FILE: Final = 3


class Stopped(Exception):
    """The work came to a stop at `item`, the last that it began with; 0: before the first."""

    def __init__(self, item: int) -> None:
        super().__init__(f"it came to a stop at {item}")
        self.item = item


class NoChild(Exception):
    """There is no child process to do the work, or it has ended early. The text says why."""


def apart(work: Callable[[Callable[[int], None]], bytes], silence_seconds: float = SILENCE_SECONDS) -> bytes:
    """Returns what `work` returns, in a child process. It is given a function to call with each item (a process id)
    that it begins with. Raises Stopped where it is silent for so long, and NoChild."""
    read_end, write_end = os.pipe()
    steps = Watchdog()  # a message for each item would wake the parent for each
    try:
        child = fork()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise NoChild(f"cannot start a process: {error.strerror}") from None
    if not child:
        _be_child(work, write_end, steps)
    os.close(write_end)
    try:
        return _follow(child, read_end, steps, silence_seconds)
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _reap(child)


_unreaped: list[int] = []
"""Children that were killed and had not ended yet: they wait in the kernel for what no signal ends."""


def _reap(child: int) -> None:
    _unreaped.append(child)
    end = time.monotonic() + 0.1
    while child in _unreaped:
        for each in list(_unreaped):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(each, os.WNOHANG)[0] == 0:
                    continue
            with contextlib.suppress(ValueError):  # another thread was first
                _unreaped.remove(each)
        if time.monotonic() > end:
            return
        time.sleep(0.0002)


def fork() -> int:
    """Forks without Python's warning about threads."""
    with warnings.catch_warnings():
        # It is of locks that other threads hold. A child of ours takes none of theirs, and one that waits is killed.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_child(work: Callable[[Callable[[int], None]], bytes], write_end: int, steps: Watchdog) -> None:
    """Does the work, tells of it, and ends: nothing of the parent's is run."""
    status = 1
    try:
        gc.disable()
        if write_end != _KEPT_FILE:
            os.dup2(write_end, _KEPT_FILE)
        os.closerange(_KEPT_FILE + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            _tell(_RESULT, work(lambda item: steps.announce(str(item), 0.0)))
        except Exception as error:
            _tell(_ERROR, f"{type(error).__name__}: {error}".encode())
        status = 0
    finally:
        os._exit(status)


def _tell(kind: bytes, data: bytes) -> None:
    left = memoryview(_HEAD.pack(kind, len(data)) + data)
    while left:
        left = left[os.write(_KEPT_FILE, left) :]


def _is_waiting(child: int) -> bool:
    """Whether it waits for something; one that has too little of the processor does not."""
    stat = read_stat(child)
    return stat is not None and stat.state in "SD"


def _follow(child: int, read_end: int, steps: Watchdog, silence_seconds: float) -> bytes:
    data, newest, since, waited = bytearray(), steps.current_call(), time.monotonic(), False
    poll = select.poll()  # not select(): the number of a file may be large
    poll.register(read_end, select.POLLIN)
    while True:
        if poll.poll(silence_seconds * 1000 / _LOOKS):
            part = os.read(read_end, 1 << 16)
            if not part:
                raise NoChild("a process of laggard's ended early")
            data += part
            answer = _answer(data)
            if answer is not None:
                return answer
        elif newest == steps.current_call():
            if time.monotonic() - since < silence_seconds:
                continue
            if waited and _is_waiting(child):
                raise Stopped(int(newest.text) if newest else 0)
            waited = _is_waiting(child)
            continue
        newest, since, waited = steps.current_call(), time.monotonic(), False


def _answer(data: bytearray) -> bytes | None:
    """The child's answer, where all of it has come. Raises NoChild where that is an error."""
    if len(data) < _HEAD.size:
        return None
    kind, size = _HEAD.unpack_from(data)
    if len(data) < _HEAD.size + size:
        return None
    body = bytes(data[_HEAD.size : _HEAD.size + size])
    if kind == _ERROR:
        raise NoChild(body.decode(errors="replace"))
    return body


# A file that a user's process has named, read by a process that may read more than that user.
#
# The user chooses the path, so it may be a FIFO, whose opening waits for ever, a device, whose opening does something,
# or a file that the user may not read: the path is first held without being opened, and what it leads to is judged by
# what is held. A file of the kernel (/proc/kmsg) has no length, and reading one may take away what others wait for.

MAX_BYTES: Final = 1 << 18
_STATUS_BYTES: Final = 16_384
_NUMBERS: Final = lazy_pattern(r"^(Uid|Gid|Groups):([\d\t ]*)$", re.MULTILINE)


class Credentials(NamedTuple):
    """The user who started a process: its real user, and its groups."""

    uid: int
    gids: frozenset[int]


def read_credentials(pid: str, proc: str = "/proc") -> Credentials:
    """The credentials of the process `pid`. Raises OSError."""
    with open(f"{proc}/{pid}/status", "rb") as file:
        status = file.read(_STATUS_BYTES).decode(errors="replace")
    numbers = {name: words.split() for name, words in _NUMBERS.findall(status)}
    try:
        gids = frozenset(map(int, (*numbers["Gid"][:1], *numbers["Groups"])))
        return Credentials(int(numbers["Uid"][0]), gids)
    except (KeyError, IndexError):
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH)) from None


def read_users_file(path: str, user: Credentials) -> bytes:
    """The content, at most MAX_BYTES of it, of a regular file that `user` may read by its mode. Raises OSError."""
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        about = os.fstat(held)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EPERM, "it is no regular file")
        if not _may_read(about, user):
            raise OSError(errno.EACCES, "its user may not read it")
        if not about.st_size:
            return b""
        with open(f"/proc/self/fd/{held}", "rb", opener=_without_waiting) as file:
            return file.read(MAX_BYTES)
    finally:
        os.close(held)


def _may_read(about: os.stat_result, user: Credentials) -> bool:
    """Decides as the kernel does (path_resolution(7)), for users other than root by the mode alone."""
    if user.uid in (0, about.st_uid):
        return user.uid == 0 or bool(about.st_mode & stat.S_IRUSR)
    return bool(about.st_mode & (stat.S_IRGRP if about.st_gid in user.gids else stat.S_IROTH))


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


SKIPPED_SECONDS: Final = 600.0
_MAX_USERS: Final = 1024


class HangingUsers:
    """To be used from threads. Of root, whose processes are the system's, single processes are left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = allocate_lock()
        self._until: dict[tuple[str, int], float] = {}
        self.stops = 0
        """The number of times that one of them made a reader wait."""

    def blame(self, pid: int) -> None:
        """The process `pid` has made a reader wait."""
        uid = _user(pid)
        key = ("user", uid) if uid else ("process", pid)
        with self._lock:
            self.stops += 1
            if len(self._until) >= _MAX_USERS:
                self._until.clear()
            self._until[key] = self._clock() + SKIPPED_SECONDS
        whom = f"the processes of user {uid} are" if uid else "it is"
        import logging  # only here: it takes some milliseconds of the gate's start

        logging.getLogger("laggard.probes").warning(
            "process %d does not let itself be read: %s left out for %d minutes", pid, whom, 10
        )

    def without(self, pids: Iterable[str]) -> tuple[list[str], int]:
        """Those of the process ids that may be read, and how many are left out."""
        pids, now = list(pids), self._clock()
        with self._lock:
            self._until = {key: until for key, until in self._until.items() if until > now}
            hanging = frozenset(self._until)
        if not hanging:
            return pids, 0
        kept = [
            pid for pid in pids if ("process", int(pid)) not in hanging and ("user", _user(int(pid))) not in hanging
        ]
        return kept, len(pids) - len(kept)


def _user(pid: int) -> int:
    """The account that runs the process; 0 where it has ended."""
    try:
        return ACCOUNTS.account_of(read_credentials(str(pid)).uid)
    except OSError:
        return 0


HANGING: Final = HangingUsers()
"""The users whose processes hang, as this process knows them."""
