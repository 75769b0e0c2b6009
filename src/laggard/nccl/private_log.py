"""A log of NCCL that only laggard reads: asked for before the script runs, read while it runs, removed at its end.

What the user has set is never changed: with NCCL_DEBUG or NCCL_DEBUG_FILE in the environment or in one of NCCL's
settings files there is no private log. NCCL_DEBUG_FILE with `%p` is understood by every NCCL since 2.2. INIT brings
the channels' ways, ENV the variables, NET the devices and GPUDirect; none of them logs in a step. One trace is left:
NCCL up to 2.23 prints its version on rank 0's standard output as soon as NCCL_DEBUG is set.
"""

from __future__ import annotations

import codecs
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from typing import Final

from laggard.environment import ENV_NCCL_LOG
from laggard.nccl.conf import ETC, parse_conf
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.log.reader import NcclLogReader

LOG_SETTINGS: Final = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
_SUBSYSTEMS: Final = "INIT,NET,ENV"
_MOST_AT_ONCE: Final = 4 << 20
_MOST_ON_DISK: Final = 8 << 20
_MOST_CONF = 1 << 16


def prepare_log(environ: MutableMapping[str, str], directory: str, etc_conf: str = ETC) -> PrivateLog | None:
    """Has NCCL log into a new folder of mode 0700 in `directory`, which is made if need be. Better in memory (/dev/shm)
    than on a shared disk, and not among the rank files. None, and `environ` as it was, where the user has settings of
    his own, or the folder cannot be made. A process started by one with a private log gets its own."""
    inherited = environ.get(ENV_NCCL_LOG, "")
    ours = bool(inherited) and environ.get("NCCL_DEBUG_FILE") == inherited
    if not ours and _set_by_user(environ, etc_conf):
        return None
    try:
        os.makedirs(directory, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="nccl-", dir=os.path.abspath(directory))
    except OSError:
        return None
    pattern = os.path.join(folder, "log").replace("%", "%%") + ".%p"
    environ["NCCL_DEBUG"] = "INFO"
    if not ours:
        environ.setdefault("NCCL_DEBUG_SUBSYS", _SUBSYSTEMS)
    environ["NCCL_DEBUG_FILE"] = environ[ENV_NCCL_LOG] = pattern
    return PrivateLog(folder)


def _set_by_user(environ: MutableMapping[str, str], etc_conf: str) -> bool:
    """NCCL_DEBUG_SUBSYS alone chooses nothing, and is left as it is."""
    own = environ.get("NCCL_CONF_FILE") or os.path.join(environ.get("HOME", ""), ".nccl.conf")
    settings = {**_conf(own), **_conf(etc_conf), **environ}
    return "NCCL_DEBUG" in settings or "NCCL_DEBUG_FILE" in settings


def _conf(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return dict(parse_conf(file.read(_MOST_CONF)).settings)
    except (OSError, ValueError):
        return {}


class PrivateLog:
    """The log of this process. Not for several threads at once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._pid = os.getpid()
        self._path = os.path.join(folder, f"log.{self._pid}")
        self._reader = NcclLogReader()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0

    def read(self) -> NcclProcess | None:
        """What the log says so far; None: nothing yet. Reads what is new, at most 4 MiB at once, and gives the space of
        what was read back when it is much."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE)
        except OSError:
            data = b""
        self._offset += len(data)
        self._reader.feed(self._decode(data).replace("\0", ""))
        if self._offset > _MOST_ON_DISK and len(data) < _MOST_AT_ONCE:
            self._free()
        processes = self._reader.log().processes
        return max(processes, key=lambda process: (process.pid == self._pid, process.started), default=None)

    def remove(self) -> None:
        """The folder and all in it; by the process that made it alone, not by its forks."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _free(self) -> None:
        """NCCL goes on to write where it was: the file keeps its length and loses its contents."""
        try:
            if os.path.getsize(self._path) <= self._offset:
                os.truncate(self._path, 0)
                os.truncate(self._path, self._offset)
        except OSError:
            return
