"""Python's faulthandler armed ahead, so that a stack comes out where no Python code runs any more: while C code holds
the GIL, at a crash, and when the scheduler ends the job.

faulthandler writes from C, without the GIL, into a file that is open already. What the script has armed itself stays
the script's: its own timer, its own handlers, its own file.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import os
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from laggard.stacks.fault_text import last_dump
from laggard.stacks.sampled import Counted, Frame, Thread, shortened, text_of

HELD_RATIO: Final = 2 / 3
"""The share of the time of a standstill after which, where laggard's thread has not run meanwhile, the stacks are
written: the GIL is held."""

CHILD_SIGNAL: Final = signal.SIGRTMAX - 6
"""The signal by which a forked child is asked for its stack. It is taken only where its default action is in force, and
sent only to a process that handles it."""

_MAX_BYTES: Final = 4 << 20


class FaultFile:
    """The file of this process's dumps, and what writes into it. `stall_seconds`: the time without progress that counts
    as a standstill; `head`: the file's first line. Raises OSError where the file cannot be made."""

    def __init__(self, path: str, head: bytes, stall_seconds: float) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.path = path
        self._held_seconds = stall_seconds * HELD_RATIO
        self._fd = os.open(path, flags, 0o600)
        about = os.fstat(self._fd)
        if about.st_uid != os.geteuid() or about.st_nlink != 1 or not stat.S_ISREG(about.st_mode):
            os.close(self._fd)
            raise PermissionError(errno.EPERM, "is not this user's alone", path)
        self._head = head
        self.empty()
        self._is_users_timer = self._is_forking = self._is_closed = False
        self._timer = faulthandler.dump_traceback_later  # themselves: below, these names tell of the script's calls
        self._cancel = faulthandler.cancel_dump_traceback_later
        self._enable, self._disable_crashes = faulthandler.enable, faulthandler.disable
        self._take, self._give_back = faulthandler.register, faulthandler.unregister
        self._registered: dict[int, Any] = {}  # by signal: what Python knew of its handler before
        self._enabled = False
        self._pid = os.getpid()

    def arm(self) -> None:
        """Arms all of it."""
        self._leave_to_script()
        if not faulthandler.is_enabled():
            self._enable(self._fd, all_threads=True)
            self._enabled = True
        # Its own stack alone: to walk the frames of threads that run crashed ranks that were only to end.
        self._register(signal.SIGTERM, all_threads=False, chain=True)
        if signal.getsignal(CHILD_SIGNAL) == signal.SIG_DFL:
            self._register(CHILD_SIGNAL, all_threads=False, chain=False)
        # A child that inherited the timer would wait for ever at its end, for a thread that it does not have.
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
        )
        self.put_off()

    def put_off(self) -> None:
        """Laggard's thread runs: the dump of a held GIL is due again later."""
        if not self._is_users_timer and not self._is_forking and not self._is_closed:
            self._timer(self._held_seconds, repeat=False, file=self._fd, exit=False)

    def text_since(self, offset: int) -> str:
        """Returns what was written from `offset` on."""
        return os.pread(self._fd, _MAX_BYTES, offset).decode("utf-8", "replace")

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def is_handled_by_children(self) -> bool:
        return CHILD_SIGNAL in self._registered

    def empty(self) -> None:
        """Takes back what was written: it has been read."""
        os.ftruncate(self._fd, 0)
        os.write(self._fd, self._head)

    def close(self) -> None:
        """The process ends in order: nothing is written any more, and the file goes where nothing was."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        if not self._is_users_timer:
            self._cancel()
        self._disarm()
        with contextlib.suppress(OSError):
            if self.size() == len(self._head):
                os.unlink(self.path)

    def _register(self, number: int, all_threads: bool, chain: bool) -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            before = signal.getsignal(number)
            self._take(number, file=self._fd, all_threads=all_threads, chain=chain)
            self._registered[number] = before

    def _unregister(self, number: int) -> None:
        """Gives the signal back, unless the script has taken it since: what was there before would replace that."""
        before = self._registered.pop(number, self)
        if before is not self and signal.getsignal(number) == before:
            self._give_back(number)

    def _disable(self) -> None:
        if self._enabled:
            self._enabled = False
            self._disable_crashes()

    def _disarm(self) -> None:
        for number in list(self._registered):
            self._unregister(number)
        self._disable()

    def _leave_to_script(self) -> None:
        """Leaves what the script arms itself to the script, from its first own call on: the one timer that faulthandler
        has, its handlers of crashes, a signal."""
        for names, tell in (
            (("dump_traceback_later", "cancel_dump_traceback_later"), self._script_uses_timer),
            (("enable", "disable"), self._script_uses_crashes),
            (("register", "unregister"), self._script_uses_signal),
        ):
            for name in names:
                _tell_of(name, tell)

    def _script_uses_timer(self, *_: Any, **__: Any) -> None:
        self._is_users_timer = True

    def _script_uses_crashes(self, *_: Any, **__: Any) -> None:
        self._enabled = False

    def _script_uses_signal(self, *arguments: Any, **named: Any) -> None:
        self._registered.pop(named.get("signum", next(iter(arguments), -1)), None)

    def _before_fork(self) -> None:
        self._is_forking = True
        if not self._is_users_timer:
            self._cancel()

    def _after_fork(self) -> None:
        self._is_forking = False
        self.put_off()

    def _after_fork_in_child(self) -> None:
        """A child answers when it is asked; its end is no end of the rank."""
        self._unregister(signal.SIGTERM)
        self._disable()


def _tell_of(name: str, tell: Callable[..., None]) -> None:
    """Has tell(...) called before each of the script's calls of that function of faulthandler's."""
    original = getattr(faulthandler, name)

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        tell(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(faulthandler, name, called)


# The child processes of a rank, such as a DataLoader's workers, and their stacks.
#
# A forked child has inherited faulthandler's handler of CHILD_SIGNAL, which writes the stack of the thread that gets
# the signal into the rank's own fault file. It is sent to a child whose kernel says that it handles the signal, and to
# no other: one that was started anew would be ended by it.

MAX_CHILDREN: Final = 32
_ANSWER_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.001


class Children:
    """Asks the children in turn, one at each call of take()."""

    def __init__(self, faults: FaultFile) -> None:
        self._faults = faults
        self._names: dict[int, str] = {}
        self._refusing: set[int] = set()
        self._turn = 0
        self._counts: dict[int, Counter[tuple[Frame, ...]]] = {}

    def take(self) -> None:
        """Asks the next child. Waits up to a tenth of a second for its answer, without the GIL."""
        living = _children() if self._faults.is_handled_by_children() else {}
        self._names |= living
        pids = [pid for pid in living if pid not in self._refusing]
        if not pids:
            return
        pid = pids[self._turn % len(pids)]
        self._turn += 1
        if not _handles(pid):
            self._refusing.add(pid)
            return
        before = self._faults.size()
        with contextlib.suppress(OSError):
            os.kill(pid, CHILD_SIGNAL)
            frames = self._answer(before)
            if frames:
                self._counts.setdefault(pid, Counter())[frames] += 1

    def take_each(self) -> None:
        """Asks each child once."""
        for _ in _children():
            self.take()

    def threads(self) -> tuple[Thread, ...]:
        return tuple(
            Thread(text_of(self._names.get(pid, "")), tuple(_counted(counts)), pid)
            for pid, counts in self._counts.items()
        )

    def _answer(self, before: int) -> tuple[Frame, ...]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        size, last = before, -1
        while (size != last or size == before) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            last, size = size, self._faults.size()
        dump = last_dump(self._faults.text_since(before))
        if dump is not None and not dump.timed_out and not dump.fatal:
            self._faults.empty()
            return dump.threads[0].frames
        return ()


def _counted(counts: Counter[tuple[Frame, ...]]) -> list[Counted]:
    told = []
    for frames, count in counts.most_common():
        kept, left_out = shortened(frames)
        told.append(Counted(count, kept, left_out=left_out))
    return told


def _children() -> dict[int, str]:
    """The children that multiprocessing started in this process, by pid, with their names; none is waited for."""
    process = sys.modules.get("multiprocessing.process")
    found = {}
    for child in list(getattr(process, "_children", ()))[:MAX_CHILDREN]:
        pid = getattr(child, "pid", None)
        if isinstance(pid, int):
            found[pid] = str(getattr(child, "name", ""))
    return found


def _handles(pid: int, number: int = CHILD_SIGNAL, proc: str = "/proc") -> bool:
    """Whether the process is a child of this one and handles the signal, as the kernel says."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        mask = int(lines["SigCgt"], 16)
        return bool(mask >> (number - 1) & 1) and int(lines["PPid"]) == os.getpid()
    except (OSError, KeyError, ValueError):
        return False
