"""A log of NCCL that only laggard reads: requested before the script runs, read while it runs, removed at its end.

laggard never changes what the user has set: with NCCL_DEBUG or NCCL_DEBUG_FILE in the environment or in one of NCCL's
settings files there is no private log. Every NCCL since 2.2 understands `%p` in NCCL_DEBUG_FILE. The subsystem INIT
logs the channels and their transports, ENV the variables, NET the devices and GPUDirect; none of them logs during a
step. The user can see one difference: NCCL up to 2.23 prints its version on rank 0's standard output as soon as
NCCL_DEBUG is set.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

from laggard.kit.environment import ENV_NCCL_LOG
from laggard.nccl.log.model import NcclProcess
from laggard.nccl.log.reader import NcclLogReader
from laggard.nccl.transport import LOG_EMPTY, LOG_NONE, LOG_OF_THE_USER, LOG_READ, Transport
from laggard.nccl.variables import ETC, may_be_shown, parse_conf, version_of_code

LOG_SETTINGS: Final = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
"""The variables that prepare_log() sets."""
_SUBSYSTEMS: Final = "INIT,NET,ENV"
_MAX_READ_BYTES: Final = 4 << 20
_MAX_FILE_BYTES: Final = 8 << 20
_MAX_CONF_CHARACTERS = 1 << 16
_PREFIX: Final = "nccl-"
_PRUNE_AFTER_SECONDS: Final = 60.0  # longer than it takes from the creation of a folder to its lock


def prepare_log(environ: MutableMapping[str, str], directory: str, etc_conf: str = ETC) -> PrivateLog | None:
    """Sets NCCL's variables in `environ` so that NCCL logs into a new folder of mode 0700 in `directory`, and creates
    both. `directory` should be in memory (/dev/shm) rather than on a shared disk, and not among the rank files.

    Returns None and leaves `environ` as it was where the user has settings of their own, or the folder cannot be
    created. A process whose parent has a private log gets a log of its own.
    """
    inherited = environ.get(ENV_NCCL_LOG, "")
    is_private = bool(inherited) and environ.get("NCCL_DEBUG_FILE") == inherited
    if not is_private and _set_by_user(environ, etc_conf):
        return None
    try:
        os.makedirs(directory, exist_ok=True)
        _prune(directory)
        log = PrivateLog(tempfile.mkdtemp(prefix=_PREFIX, dir=os.path.abspath(directory)))
    except OSError:
        return None
    pattern = os.path.join(log.folder, "log").replace("%", "%%") + ".%p"
    environ["NCCL_DEBUG"] = "INFO"
    if not is_private:
        environ.setdefault("NCCL_DEBUG_SUBSYS", _SUBSYSTEMS)
    environ["NCCL_DEBUG_FILE"] = environ[ENV_NCCL_LOG] = pattern
    return log


def _prune(directory: str) -> None:
    """Removes this user's folders that killed processes have left."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_PREFIX) and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                    _remove_if_left(entry.path, about.st_mtime)


def _remove_if_left(folder: str, modified: float) -> None:
    if time.time() - modified > _PRUNE_AFTER_SECONDS:
        lock = _lock(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: str) -> int:
    """Locks `folder` for as long as the descriptor that it returns, or a forked child's, is open. Raises OSError where
    another process, which lives, has locked it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _set_by_user(environ: MutableMapping[str, str], etc_conf: str) -> bool:
    """Whether the user has NCCL log already. NCCL_DEBUG_SUBSYS alone does not, and stays as it is."""
    own = environ.get("NCCL_CONF_FILE") or os.path.join(environ.get("HOME", ""), ".nccl.conf")
    settings = {**_conf(own), **_conf(etc_conf), **environ}
    return "NCCL_DEBUG" in settings or "NCCL_DEBUG_FILE" in settings


def _conf(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return dict(parse_conf(file.read(_MAX_CONF_CHARACTERS)).settings)
    except (OSError, ValueError):
        return {}


class PrivateLog:
    """The private log of this process, which keeps its folder locked. Not for several threads at once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = _lock(folder)
        self._pid = os.getpid()
        self._path = os.path.join(folder, f"log.{self._pid}")
        self._reader = NcclLogReader()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0

    def read(self) -> NcclProcess | None:
        """This process as the log shows it so far; None: nothing is logged yet. Reads what is new, at most 4 MiB a
        call, and frees the space of what was read once that is more than 8 MiB."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            data = b""
        self._offset += len(data)
        self._reader.feed(self._decode(data).replace("\0", ""))
        if self._offset > _MAX_FILE_BYTES and len(data) < _MAX_READ_BYTES:
            self._free()
        processes = self._reader.log().processes
        return max(processes, key=lambda process: (process.pid == self._pid, process.started), default=None)

    def remove(self) -> None:
        """Removes the folder and all in it. Does nothing in a forked child of the process that created it."""
        if os.getpid() == self._pid:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # a script that closes all descriptors has closed it
                os.close(self._lock)

    def _free(self) -> None:
        """Drops the file's contents and keeps its length, because NCCL goes on writing at the same offset."""
        try:
            if os.path.getsize(self._path) <= self._offset:
                os.truncate(self._path, 0)
                os.truncate(self._path, self._offset)
        except OSError:
            return


# Finds the version of the NCCL, or of AMD's RCCL, that this process has loaded. Never loads one: two NCCLs in a process
# are a fault.

_LIBRARY = re.compile(r" (/.*/lib[nr]ccl\.so[.0-9]*)(?: \(deleted\))?$", re.MULTILINE)
_MAX_MAPS_BYTES = 16 << 20


def loaded_version(proc: str) -> str:
    """The loaded library's version, such as `2.27.5`; empty where none is loaded (or NCCL is linked into torch itself).
    RCCL has the functions and version numbers of the NCCL that it was made from (ROCm/rccl, src/nccl.h.in).

    `proc`: /proc/self, whose `maps` has the path of the library's file.
    """
    path = _library_path(proc)
    if not path:
        return ""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        code = ctypes.c_int(0)
        status = library.ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return ""
    return version_of_code(code.value) if status == 0 and code.value > 0 else ""


def _library_path(proc: str) -> str:
    try:
        with open(f"{proc}/maps", encoding="utf-8", errors="surrogateescape") as file:
            match = _LIBRARY.search(file.read(_MAX_MAPS_BYTES))
    except OSError:
        return ""
    return match[1] if match else ""


# Finds out which transports this rank's NCCL uses, from inside the process. Standard library only; never raises.
#
#     log = prepare_log(os.environ, directory)    # before the script runs: NCCL reads its settings once
#     ...
#     transport = observe(log, os.environ)        # now and then, never on the training thread: takes milliseconds
#     text = transport.to_json()                  # at most 4 KiB, for the rank file; Transport.from_json() reads it
#     ...
#     log.remove()                                # at exit
#
# The agent turns it into findings in laggard.probes.nccl.rules.rank_findings.

__all__ = ["PrivateLog", "Transport", "observe", "prepare_log"]

_PROC = "/proc/self"
_UVERBS = "/dev/infiniband/uverbs"
_MAX_VARIABLES = 64
_MAX_CHARACTERS = 256
_MAX_DESCRIPTORS = 65536


def observe(log: PrivateLog | None, environ: Mapping[str, str], rank: int | None = None) -> Transport:
    """The transport as far as it is known now. `log`: what prepare_log() returned. `rank`: the rank in the job, where
    the caller knows it."""
    process = log.read() if log else None
    version = loaded_version(_PROC)
    source = "library" if version else ""
    if not version:
        version = _torch_version()
        source = "torch" if version else ""
    return Transport(
        nccl_version=version,
        version_source=source,
        variables=nccl_variables(environ, () if log is None else LOG_SETTINGS),
        uverbs=count_open_uverbs(_PROC),
        log=_log_state(log, process, environ),
        process=process or NcclProcess("", 0),
        rank=rank,
    )


def nccl_variables(environ: Mapping[str, str], without: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """The NCCL_* variables that NCCL or a known plugin reads, less those in `without`: (name, value), in order of the
    names, bounded in number and length. Returns nothing else of the environment, and no value that only the ranks may
    know."""
    own = [name for name in environ if name.startswith("NCCL_") and may_be_shown(name)]
    reported = [name for name in sorted(own) if name not in without][:_MAX_VARIABLES]
    return tuple((name, environ[name][:_MAX_CHARACTERS]) for name in reported)


def count_open_uverbs(proc: str) -> int | None:
    """The number of descriptors of RDMA devices that a process has open; None: they cannot be counted. `proc`:
    /proc/self."""
    try:
        numbers = os.listdir(f"{proc}/fd")[:_MAX_DESCRIPTORS]
    except OSError:
        return None
    return sum(_read_link(f"{proc}/fd/{number}").startswith(_UVERBS) for number in numbers)


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _torch_version() -> str:
    """The NCCL version that torch was built with, if the script has imported torch; empty if not. Unless someone has
    replaced the library, it is the loaded one."""
    try:
        nccl = sys.modules["torch"].cuda.nccl
        return ".".join(str(part) for part in nccl.version()[:3])
    except Exception:  # torch is not imported, was built without CUDA, or has the function elsewhere
        return ""


def _log_state(log: PrivateLog | None, process: NcclProcess | None, environ: Mapping[str, str]) -> str:
    if log is None:
        return LOG_OF_THE_USER if "NCCL_DEBUG" in environ or "NCCL_DEBUG_FILE" in environ else LOG_NONE
    return LOG_READ if process else LOG_EMPTY
