"""Where tests leave their files: in memory, where there is room. Most of their time on a disk is unlinking small files,
of which a recorded machine has hundreds.

The folder is the run's own, in a name that nobody can guess, and goes when the run ends. A run that was killed leaves
its folder; the next one knows by the lock on it that nobody holds it any more, and removes it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
MIN_FREE_BYTES: Final = 2 << 30
PREFIX: Final = "laggard-tests-"
_LOCKED_AFTER_SECONDS: Final = 60  # far more than a run needs from making its folder to locking it


class OwnFolder:
    """A new folder below `memory`, this run's until remove()."""

    def __init__(self, memory: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory))
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        _remove(self.path)
        os.close(self._lock)


def has_room(memory: Path = MEMORY) -> bool:
    """Whether files can be made, and scripts run, in a file system with MIN_FREE_BYTES to spare."""
    try:
        state = os.statvfs(memory)
    except OSError:
        return False
    executable = not state.f_flag & os.ST_NOEXEC
    return executable and os.access(memory, os.W_OK | os.X_OK) and state.f_bavail * state.f_frsize >= MIN_FREE_BYTES


def remove_abandoned(memory: Path = MEMORY) -> None:
    """The folders of this user's runs that were killed."""
    for path in memory.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or held by its run
            state = path.lstat()
            if state.st_uid == os.geteuid() and time.time() - state.st_mtime > _LOCKED_AFTER_SECONDS:
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    """Raises OSError where its run is alive."""
    folder = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(folder)


def _remove(path: Path) -> None:
    """Also what tests took the rights from."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
