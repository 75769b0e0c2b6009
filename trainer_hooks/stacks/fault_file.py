"""Python's faulthandler armed ahead, so that a stack comes out where no Python code runs any more: while C code holds
the GIL, at a crash, and when the scheduler ends the job.

faulthandler writes from C, without the GIL, into a file that is open already. What the script has armed itself stays
the script's: its own timer, its own handlers, its own file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
from collections.abc import Callable
from typing import Any, Final

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
        self._register(signal.SIGTERM, all_threads=True, chain=True)
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
        for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
            _tell_of(name, self._script_uses_timer)
        for name in ("enable", "disable"):
            _tell_of(name, self._script_uses_crashes)
        for name in ("register", "unregister"):
            _tell_of(name, self._script_uses_signal)

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
