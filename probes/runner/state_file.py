"""Small files that one run leaves for the next, in a directory that only this user can write to. A file that another
user could have written is not read."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from laggard import wire
from laggard.kit.environment import state_dir
from laggard.kit.processes import UNINTERRUPTIBLE, read_stat, signal_name
from laggard.probes.errors import NotFound, Unknown, if_present
from laggard.probes.host.counter_history import NO_SNAPSHOT, CounterHistory, CounterSnapshot, add_snapshot, all_along
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.host.watchdog import AnnouncedCall

MAX_BYTES: Final = 4 << 20
MAX_LOCK_SECONDS: Final = 0.5
_LOCK_PAUSE_SECONDS: Final = 0.01


def read_state(name: str) -> bytes:
    """The content of the file `name`; empty where there is no such file. Raises Unknown."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with _directory(make=False) as directory, os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            _require_private(os.fstat(file.fileno()), stat.S_ISREG, name)
            return file.read(MAX_BYTES)
    except (NotFound, FileNotFoundError):
        return b""
    except OSError as error:
        raise Unknown(f"cannot read {name}: {error.strerror}") from None


def replace_state(name: str, data: bytes) -> None:
    """Replaces the file `name` by `data`, atomically. Raises Unknown."""
    with _directory(make=True) as directory:
        _replace(directory, name, data)


@contextlib.contextmanager
def locked_state(name: str) -> Iterator[None]:
    """No other process that asks for this lock changes the file `name` meanwhile. It is waited for
    MAX_LOCK_SECONDS at most: a process that hangs with it must not hold up the others. Raises Unknown."""
    import fcntl  # few runs change a file that others change too

    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with _directory(make=True) as directory:
        try:
            descriptor = os.open(f".{name}.lock", flags, 0o600, dir_fd=directory)
        except OSError as error:
            raise Unknown(f"cannot lock {name}: {error.strerror}") from None
    try:
        until = time.monotonic() + MAX_LOCK_SECONDS
        while not _lock(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and time.monotonic() < until:
            time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _lock(flock: Callable[[int, int], None], descriptor: int, operation: int) -> bool:
    try:
        flock(descriptor, operation)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _directory(make: bool) -> Iterator[int]:
    """Opens the state directory, which only this user can write to. `make`: create it where it is missing. Raises
    Unknown; NotFound where it is missing."""
    path = state_dir(os.environ)
    try:
        if make:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"there is no {path}") from None
    except OSError as error:
        raise Unknown(f"cannot use {path}: {error.strerror}") from None
    try:
        _require_private(os.fstat(descriptor), stat.S_ISDIR, path)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_private(status: os.stat_result, is_type: Callable[[int], bool], name: str) -> None:
    """Raises Unknown where `name` has another type, another owner, or may be written by others."""
    if not is_type(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise Unknown(f"{name} is not this user's alone")


def _replace(directory: int, name: str, data: bytes) -> None:
    temporary = f".{name}.{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # left by a process that died and had this number
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise Unknown(f"cannot write {name}: {error.strerror}") from None


# Keeps the counters' snapshots between processes (the gate is a new one each time), in one small file.
#
# Nothing here fails a run. A directory that cannot be written, or that other users own or may write, is not used, and
# the report says so. A file that is damaged, or from another boot, counts as no file.

FILE_NAME: Final = "last_look.json"
RECORDED_PATH: Final = f"/laggard/{FILE_NAME}"
MAX_BOOTS: Final = 4
"""The boots whose best is remembered: a repair takes one or two, and what is gone for good is no longer told then."""

_UNAVAILABLE: Final = "how counters increase cannot be known: "


class HistoryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content: the snapshots of one boot, by probe, and what the boots before it had all along, the newest
    first."""

    boot_id: str
    probes: dict[str, tuple[CounterSnapshot, ...]] = {}
    boots: tuple[dict[str, dict[str, int]], ...] = ()
    laggard_last_look: int = 1  # the version of this document


class HistoryStore:
    """The snapshots that were saved before this run; `save` adds those of this run."""

    def __init__(self, host: Host) -> None:
        self._recorded = host.recorded
        self._uptime, self._why_empty, self._saved = 0.0, NO_SNAPSHOT, HistoryFile("")
        try:
            self._saved = HistoryFile(host.boot_id())
            self._uptime = read_uptime(host)  # a wall clock would not do: it can be set back
            data = if_present(host.read_bytes, RECORDED_PATH) if host.recorded else read_state(FILE_NAME)
            loaded = wire.decode(data, HistoryFile) if data else self._saved
            if loaded.boot_id == self._saved.boot_id:
                self._saved = loaded
            else:
                self._why_empty = f"{NO_SNAPSHOT}; the machine was rebooted since the last one"
                last = {probe: learnt for probe, shots in loaded.probes.items() if (learnt := all_along(shots))}
                boots = (last, *loaded.boots)[:MAX_BOOTS] if last else loaded.boots
                self._saved = HistoryFile(self._saved.boot_id, boots=boots)
        except Unknown as error:
            self._why_empty = _UNAVAILABLE + str(error)
        except wire.WireError as error:
            self._why_empty = f"{NO_SNAPSHOT}; the file of earlier ones is damaged: {error}"

    def history(self, probe: str) -> CounterHistory:
        """The snapshots of `probe` that are older than this run."""
        snapshots = sorted(self._saved.probes.get(probe, ()), key=lambda snapshot: snapshot.uptime)
        earlier = tuple(snapshot for snapshot in snapshots if snapshot.uptime < self._uptime)
        best: dict[str, int] = {}
        for boot in self._saved.boots:
            best.update({name: max(it, best.get(name, it)) for name, it in boot.get(probe, {}).items()})
        return CounterHistory(self._uptime, earlier, self._why_empty, best)

    def save(self, counters: Mapping[str, Mapping[str, int]]) -> str:
        """Saves this run's counters, by probe. Returns why that is not possible, or an empty text. The recording of a
        machine is left as it is."""
        if self._recorded or not counters or not self._uptime:
            return ""
        new = {
            name: add_snapshot(self.history(name).snapshots, CounterSnapshot(self._uptime, dict(values)))
            for name, values in counters.items()
        }
        data = wire.encode(HistoryFile(self._saved.boot_id, {**self._saved.probes, **new}, self._saved.boots))
        if len(data) > MAX_BYTES:
            return f"{_UNAVAILABLE}{len(data)} bytes of counters are too many to save"
        try:
            replace_state(FILE_NAME, data)
        except Unknown as error:
            return _UNAVAILABLE + str(error)
        return ""


# Remembers the processes of probes that survived SIGKILL: they are stuck in the kernel, and to start another one would
# only add to them.
#
# They outlive the gate that started them, so they are saved between runs, by process number and start time: by then the
# number alone may be another process's. Without a state directory only this process's own children are known.

# Kills and reaps the processes of probes. Nothing here waits for a process that does not die.

_GRACE_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 0.001


def kill_group(pid: int) -> None:
    """Sends SIGKILL to the process and to everything that it started (its process group)."""
    for kill in (os.killpg, os.kill):  # the group does not exist until the child has run its first lines
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def reap(pids: Iterable[int]) -> list[int]:
    """Reaps killed children within 50 ms. Returns those that are stuck in the kernel; others that are still there die
    as soon as a busy machine lets them run."""
    deadline = time.monotonic() + _GRACE_SECONDS
    left = [pid for pid in pids if not reap_if_ended(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [pid for pid in left if not reap_if_ended(pid)]
    return [pid for pid in left if (stat := read_stat(pid)) and stat.state == UNINTERRUPTIBLE]


def reap_if_ended(pid: int) -> bool:
    """Reaps the child `pid` if it has ended. Returns whether it is gone, also where it is no child of this process or
    was reaped elsewhere."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def exit_reason(pid: int) -> str:
    """The end of the child `pid`, which has closed its end of the pipe. Does not reap it: its process group has still
    to be killed, and the number of a reaped process may already be somebody else's."""
    deadline = time.monotonic() + _GRACE_SECONDS
    reason = _peek_exit(pid)
    while reason is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        reason = _peek_exit(pid)
    return reason or "it closed its pipe and is still running"


def _peek_exit(pid: int) -> str | None:
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "it ended"
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return f"it ended with exit status {status.si_status}"
    return f"killed by {signal_name(status.si_status)}"


STUCK_FILE: Final = "stuck.json"


class StuckProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`start_ticks`: its start in clock ticks after boot; `call`: the call that it announced last."""

    pid: int
    start_ticks: int = msgspec.field(name="started")
    call: AnnouncedCall | None = msgspec.field(name="doing", default=None)


class _StuckFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    processes: dict[str, StuckProcess] = {}
    laggard_stuck: int = 1  # the version of this document


class StuckProcesses:
    """The stuck processes by the name of their probe, or of their group of probes."""

    def __init__(self) -> None:
        self._known: dict[str, StuckProcess] = {}

    def load(self) -> None:
        """Adds those that earlier runs left behind. An unreadable file counts as none."""
        with contextlib.suppress(Unknown, wire.WireError):
            data = read_state(STUCK_FILE)
            self._known = {**(wire.decode(data, _StuckFile).processes if data else {}), **self._known}

    def find(self, name: str) -> StuckProcess | None:
        """The process of `name` that is still there, if any."""
        stuck = self._known.get(name)
        if stuck is not None and _is_alive(stuck):
            return stuck
        self._known.pop(name, None)
        return None

    def add(self, new: Mapping[str, tuple[int, AnnouncedCall | None]], save: bool) -> None:
        """Adds processes, by name: number and announced call. `save`: also for later runs."""
        added = {
            name: StuckProcess(pid, start_ticks, call)
            for name, (pid, call) in new.items()
            if (start_ticks := _start_ticks(pid))
        }
        self._known.update(added)
        if added and save:
            alive = {name: stuck for name, stuck in self._known.items() if _is_alive(stuck)}
            with contextlib.suppress(Unknown):
                replace_state(STUCK_FILE, wire.encode(_StuckFile(alive)))


def _is_alive(stuck: StuckProcess) -> bool:
    reap_if_ended(stuck.pid)
    return _start_ticks(stuck.pid) == stuck.start_ticks


def _start_ticks(pid: int) -> int:
    """Clock ticks after boot; 0 for a process that has ended, reaped or not."""
    stat = read_stat(pid)
    return 0 if stat is None or stat.has_ended else stat.start_ticks
