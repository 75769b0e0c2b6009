"""The machine as a probe sees it. Probes use the machine through a Host, and in no other way."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from laggard import wire
from laggard.kit.environment import ENV_NODE
from laggard.kit.errors import UsageError
from laggard.model import Report
from laggard.probes.errors import NotFound, Unknown, if_present, or_none
from laggard.probes.host import live
from laggard.probes.host.apart import read_credentials, read_users_file
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.kernel import (
    PLACES_PATH,
    REPLIES_PATH,
    FileSystem,
    KernelClock,
    Pfc,
    RecordedKernel,
    RecordedTree,
    StatvfsReply,
    Usage,
    open_regular,
)
from laggard.probes.host.kernel_log import KMSG_PATH, LogMemory, read_kmsg, remember, with_memory
from laggard.probes.host.program import ProgramEnd, run_program, written_by_others
from laggard.probes.host.watchdog import Watchdog
from laggard.probes.nvml.model import NVML_PATH, Nvml

T = TypeVar("T")

ReadAt = Callable[[int, int], bytes]
"""A function that reads, from an offset on, so many bytes, or as many as there are."""

MAX_BYTES: Final = 4 << 20
"""The largest file that is read; larger ones are refused: no file that a probe reads comes near this size."""

_CHUNK_BYTES: Final = 1 << 16  # /proc/sys allocates as much as a read asks for, and refuses megabytes


class Host:
    """A live machine, or a recorded one. For a recorded one nothing is read from the machine that laggard runs on.

    Every method raises Unknown, with the path and the kernel's reason, where the machine gives no answer, and
    NotFound, a kind of Unknown, where there is no such file. So a probe that catches neither is unknown, not ok.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        self.recorded = self.root != "/"
        self.counter_history = CounterHistory()  # of the probe that runs; set by the runner
        self.supervised = False  # whether this process may hang; set by the runner
        self.watchdog: Watchdog | None = None  # where calls into a driver are announced; set by the runner
        self.ends_at = math.inf  # when this process is ended (monotonic seconds); set by the runner
        self.run: Callable[..., Report] = _run_nothing  # probes in processes of their own; set by the runner
        self.left = 0  # the number of a program that survived SIGKILL; read by the runner
        self._tree = RecordedTree(self.root)
        self._recording = RecordedKernel(self._tree) if self.recorded else None
        self._nvml: Nvml | None = None
        self._log_memory = LogMemory()
        self._log: str | None = None

    def read(self, path: str) -> str:
        """The text of the file at `path`. Raises Unknown also where it is not UTF-8 text."""
        return _text(path, self.read_bytes(path))

    def text(self, path: str) -> str:
        """The text of the file at `path`, without blanks at its ends; empty where it cannot be read. It is for what
        decides nothing, or where no answer is one."""
        return (or_none(self.read, path) or "").strip()

    def read_if_present(self, path: str) -> str:
        """The same of a file that not every machine has; empty where there is none. Raises Unknown where it cannot be
        read."""
        return (if_present(self.read, path) or "").strip()

    def number(self, path: str, base: int = 10) -> int | None:
        """The number in the file at `path`; None where it holds none, or cannot be read."""
        with contextlib.suppress(Unknown, ValueError):
            return int(self.read(path), base)
        return None

    def names(self, path: str) -> tuple[str, ...]:
        """The names in the directory at `path`, as entries() has them; none where it cannot be listed."""
        return or_none(self.entries, path) or ()

    def read_users_file(self, path: str, pid: str) -> str:
        """The text of a file that the process `pid` has named, which may be any path at all: see apart.py."""
        return _text(path, _attempt(f"read {path}", lambda: self._read_users_file(path, pid)))

    def process_user(self, pid: str) -> str:
        """The user who has started the process `pid`; empty for a recorded machine, which does not hold it."""
        return "" if self.recorded else str(_attempt(f"see whose {pid} is", lambda: read_credentials(pid)).uid)

    def read_bytes(self, path: str) -> bytes:
        """The content of the file at `path`. Raises Unknown also where it is larger than MAX_BYTES."""
        data = _attempt(f"read {path}", lambda: self._read(path))
        if len(data) > MAX_BYTES:
            raise Unknown(f"{path} is larger than {MAX_BYTES >> 20} MiB")
        return data

    def read_parts(self, path: str, parse: Callable[[ReadAt], T]) -> T:
        """Returns what `parse` makes of a file that is slow to read whole; `parse` reads the parts that it needs."""
        return _attempt(f"read {path}", lambda: self._read_parts(path, parse))

    def entries(self, path: str) -> tuple[str, ...]:
        """The names in the directory at `path`, sorted."""
        return tuple(sorted(_attempt(f"list {path}", lambda: self._list(path))))

    def read_link(self, path: str) -> str:
        """The target of the symlink at `path`, as it is written in the symlink."""
        folder, _, name = path.rpartition("/")
        return _attempt(f"read the link {path}", lambda: os.readlink(f"{self._locate(folder)}/{name}"))

    def real_path(self, path: str) -> str:
        """`path` with all its symlinks followed; for a recorded machine, as it was on that machine."""
        if not self.recorded:
            return _attempt(f"resolve {path}", lambda: os.path.realpath(path, strict=True))
        place = _attempt(f"resolve {path}", lambda: self._tree.resolve(path))
        if not os.path.lexists(place):
            raise NotFound(f"cannot resolve {path}: {os.strerror(errno.ENOENT)}")
        return place[len(self.root) :]

    def file_system(self, path: str) -> FileSystem:
        """Sizes of the file system mounted at `path`. May hang on a dead file server."""
        return self._ask("file_systems", path, f"statvfs {path}", lambda: live.read_file_system(path))

    def usage(self, path: str) -> Usage:
        """The users whose files fill the local file system mounted at `path`. Takes up to half a second."""
        return self._ask("usages", path, f"see whose files fill {path}", lambda: live.read_usage(path))

    def statvfs_replies(
        self, points: Mapping[str, Sequence[str]], ask: Callable[[], Mapping[str, StatvfsReply]]
    ) -> Mapping[str, StatvfsReply]:
        """The replies of statvfs for mount points. `points`: the mount points by server; `ask` does not hang."""
        known = self._ask("replies", "", "ask the mounts", ask)
        missing = StatvfsReply(error=f"not recorded in {REPLIES_PATH}")
        return {point: known.get(point, missing) for group in points.values() for point in group}

    def places(self, paths: Sequence[str]) -> Mapping[str, str]:
        """What is at each of `paths`, symlinks followed: kind and mode as `ls -l` writes them, with the numbers of a
        character device (`crw-rw-rw- 1:3`); the kernel's message where nothing is."""
        recording, action = self._recording, "look at the places of all users"
        if recording and not os.path.exists(self._locate(PLACES_PATH)):
            return _attempt(action, lambda: recording.modes(paths))
        return self._ask("places", "", action, lambda: live.read_places(paths))

    def run_program(self, name: str, command: Sequence[str], text: str, seconds: float) -> ProgramEnd:
        """The end of a program of the site's, which runs for `seconds` at most; `text` is its input. On a recorded
        machine the end that the program `name` had there."""
        environ = {ENV_NODE: self.node()}
        end = self._ask("programs", name, f"run {name}", lambda: run_program(command, text, seconds, environ))
        self.left = self.left if self.recorded else end.left
        return end

    def written_by_others(self, path: str) -> str:
        """The reason why root trusts no file at `path`; empty where it does, and of a recorded machine."""
        return "" if self.recorded else written_by_others(path)

    def clock(self) -> KernelClock:
        """The state of the kernel's clock, by adjtimex(2)."""
        return self._ask("clock", "", "adjtimex", live.read_clock)

    def pfc(self, netdev: str) -> Pfc:
        """Priority flow control of a network device. Raises NotFound where its driver does not support it."""
        action = f"read PFC of {netdev}"
        answer = self._ask("pfc", netdev, action, lambda: live.read_pfc(netdev))
        if answer is None:
            raise NotFound(f"cannot {action}: {os.strerror(errno.EOPNOTSUPP)}")
        return answer

    def environ(self) -> Mapping[str, str]:
        """The environment that laggard was started with, or was when the machine was recorded."""
        return self._ask("environ", "", "read the environment", lambda: os.environ)

    def variables(self) -> Mapping[str, str]:
        """The same; empty for a recording of files alone, which was not made in a job. Raises Unknown."""
        return if_present(self.environ) or {}

    def time(self) -> float:
        """Unix time in seconds."""
        return self._ask("time", "", "read the time", time.time)

    def boot_time(self, uptime: float) -> float | None:
        """The Unix time of the boot, which was `uptime` seconds ago; None where the time is not known."""
        now = or_none(self.time)
        return None if now is None else now - uptime

    def nvml(self, start_seconds: float) -> Nvml:
        """NVML's readings of all GPUs. They are read once for each process. `start_seconds`: how much longer than other
        calls those may take that start a GPU."""
        if self._nvml is None:
            self._nvml = self._recorded_nvml() if self.recorded else self._live_nvml(start_seconds)
        return self._nvml

    def _recorded_nvml(self) -> Nvml:
        try:
            return wire.decode(self.read_bytes(NVML_PATH), Nvml)
        except wire.WireError as error:
            raise Unknown(f"{NVML_PATH} is damaged: {error}") from None

    def _live_nvml(self, start_seconds: float) -> Nvml:
        from laggard.probes.nvml.live import read_nvml  # pynvml takes longer to import than everything else

        announce = self.watchdog.announce if self.watchdog else lambda text, seconds: None
        return read_nvml(announce, start_seconds)

    def kernel_log(self) -> str:
        """The records of the kernel's log since boot, in the form of /dev/kmsg: see kernel_log.py. With those of the
        drivers that remember_kernel_log() saw and that the kernel has overwritten since."""
        if self.recorded:
            return self.read_bytes(KMSG_PATH).decode(errors="replace")
        if self._log is None or not self.supervised:  # the probes of one process look at one text
            self._log = with_memory(self._log_memory, _attempt("read /dev/kmsg", read_kmsg))
        return self._log

    def remember_kernel_log(self) -> None:
        """Keeps what the log holds now of the drivers. To be called again and again, in a process that stays."""
        with contextlib.suppress(OSError):  # the probes say so
            self._log_memory = remember(self._log_memory, read_kmsg())

    def kernel_log_since(self, log: str) -> float | None:
        """The seconds after boot from which on `log`, which kernel_log() returned, misses none of the drivers' records;
        None: not known."""
        return remember(self._log_memory, log).since

    def boot_id(self) -> str:
        """The kernel's id of this boot, from /proc/sys/kernel/random/boot_id: another one after each boot."""
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def node(self) -> str:
        """The name of this machine in reports: LAGGARD_NODE, else the kernel's host name, else, for a recording without
        either, the name of its folder."""
        return (
            (or_none(self.environ) or {}).get(ENV_NODE)
            or self.text("/proc/sys/kernel/hostname")
            or os.path.basename(self.root)
            or "unknown"
        )

    def _ask(self, kind: str, key: str, action: str, ask: Callable[[], T]) -> T:
        """What `ask` returns on a live machine; the recorded answer of this kind to `key` otherwise."""
        recording = self._recording
        if recording is None:
            return _attempt(action, ask)
        answer: T = _attempt(action, lambda: recording.answer(kind, key, action))
        return answer

    def _read(self, path: str) -> bytes:
        descriptor = self._open(path)
        try:
            data = chunk = os.read(descriptor, _CHUNK_BYTES)
            while chunk and len(data) <= MAX_BYTES:
                chunk = os.read(descriptor, _CHUNK_BYTES)
                data += chunk
        finally:
            os.close(descriptor)
        if not data:
            self._check_refusal("read", path)
        return data

    def _open(self, path: str) -> int:
        """Opens a path. Nothing but a file is opened of a recording, which others have made, where no deadline ends the
        waiting for a FIFO."""
        if self.recorded and not self.supervised:
            return open_regular(self._locate(path))
        return os.open(self._locate(path), os.O_RDONLY | os.O_CLOEXEC)

    def _read_users_file(self, path: str, pid: str) -> bytes:
        return self._read(path) if self.recorded else read_users_file(path, read_credentials(pid))

    def _list(self, path: str) -> list[str]:
        names = os.listdir(self._locate(path))
        if not names:
            self._check_refusal("list", path)
        return names

    def _check_refusal(self, verb: str, path: str) -> None:
        """Raises the OSError that an empty file or folder of a recording may stand for."""
        if self._recording:
            self._recording.check_refusal(f"{verb} {self._locate(path)[len(self.root) :]}")

    def _read_parts(self, path: str, parse: Callable[[ReadAt], T]) -> T:
        descriptor = self._open(path)
        try:
            if self.recorded and not os.fstat(descriptor).st_size:
                self._check_refusal("read", path)
            return parse(lambda offset, size: os.pread(descriptor, size, offset))
        finally:
            os.close(descriptor)

    def _locate(self, path: str) -> str:
        return self._tree.locate(path) if self.recorded else path


def _run_nothing(*_: object, **__: object) -> Report:
    raise Unknown("no runner runs this probe, and so none that it is made of")


def _text(path: str, data: bytes) -> str:
    """Raises Unknown where the content of `path` is not UTF-8 text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Unknown(f"{path} holds something that is not text")
    return text


def _attempt(action: str, call: Callable[[], T]) -> T:
    """Returns what `call` returns. An OSError becomes NotFound or Unknown; `action` is what the message says of it."""
    try:
        return call()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError) as error:  # the last: a process that has ended
        raise NotFound(f"cannot {action}: {error.strerror}") from None
    except OSError as error:
        raise Unknown(f"cannot {action}: {error.strerror or error}") from None


def open_host(root: str | None) -> Host:
    """The live machine, or with `root`, the value of --host-root, the machine recorded there. Raises UsageError."""
    if root is None:
        return Host()
    if not os.path.isdir(root):
        raise UsageError(f"no directory {root}: --host-root takes the folder of a recorded machine")
    if os.path.realpath(root) == "/":
        raise UsageError("--host-root / is this machine itself: leave the flag out")
    return Host(root)
