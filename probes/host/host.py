"""The machine as a probe sees it. Probes touch the machine through a Host and in no other way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from laggard import wire
from laggard.environment import ENV_NODE
from laggard.errors import UsageError
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.host.kernel import FileSystem, Kernel, KernelClock, Pfc, StatvfsReply
from laggard.probes.host.kernel_log import KMSG_PATH, read_kmsg
from laggard.probes.host.live import LiveKernel
from laggard.probes.host.progress import Progress
from laggard.probes.host.recorded import RecordedKernel
from laggard.probes.host.recorded_tree import RecordedTree
from laggard.probes.nvml.model import NVML_PATH, Nvml

T = TypeVar("T")

MOST_BYTES: Final = 4 << 20
"""No file that a probe reads is near this size; what is larger is not what it seems."""

_CHUNK_BYTES: Final = 1 << 16  # /proc/sys reserves what a read asks for, and refuses megabytes


class Host:
    """A live machine, or a recorded one: then nothing at all is read from the machine that laggard runs on.

    Every method raises Unknown, with the path and the kernel's reason, where the machine gives no answer, so that a
    probe that does not care fails safe; NotFound, a kind of Unknown, where there is no such file.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        self.recorded = self.root != "/"
        self.counter_history = CounterHistory()  # of the probe that this Host is handed to; the runner says which
        self.progress: Progress | None = None  # where the process says what it does; the runner makes it
        self._tree = RecordedTree(self.root)
        self._kernel: Kernel = RecordedKernel(self._tree) if self.recorded else LiveKernel()
        self._nvml: Nvml | None = None

    def read(self, path: str) -> str:
        """The text at `path`. Bytes that are not text are Unknown too."""
        data = self.read_bytes(path)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise Unknown(f"{path} holds something that is not text")
        return text

    def read_bytes(self, path: str) -> bytes:
        data = _ask(f"read {path}", lambda: self._read(path))
        if len(data) > MOST_BYTES:
            raise Unknown(f"{path} is larger than {MOST_BYTES >> 20} MiB")
        return data

    def read_parts(self, path: str, look: Callable[[Callable[[int, int], bytes]], T]) -> T:
        """What `look` makes of a file that is slow to read whole: it is given a function that reads, at an offset, so
        many bytes, or as many as there are."""
        return _ask(f"read {path}", lambda: self._read_parts(path, look))

    def entries(self, path: str) -> tuple[str, ...]:
        """The names in the directory at `path`, sorted."""
        return tuple(sorted(_ask(f"list {path}", lambda: self._list(path))))

    def read_link(self, path: str) -> str:
        """The target of the symlink at `path`, as it is written there."""
        folder, _, name = path.rpartition("/")
        return _ask(f"read the link {path}", lambda: os.readlink(f"{self._locate(folder)}/{name}"))

    def real_path(self, path: str) -> str:
        """`path` with every symlink in it followed; as on the machine, also of a recorded one."""
        if not self.recorded:
            return _ask(f"resolve {path}", lambda: os.path.realpath(path, strict=True))
        place = _ask(f"resolve {path}", lambda: self._tree.resolve(path))
        if not os.path.lexists(place):
            raise NotFound(f"cannot resolve {path}: {os.strerror(errno.ENOENT)}")
        return place[len(self.root) :]

    def file_system(self, path: str) -> FileSystem:
        """How full the file system mounted at `path` is. May hang on a dead server."""
        return _ask(f"statvfs {path}", lambda: self._kernel.file_system(path))

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]:
        """Whether the mount points answer statvfs within `seconds`, each server (the key) asked in a process of its
        own. Does not hang."""
        return _ask("ask the mounts", lambda: self._kernel.statvfs_replies(points, seconds))

    def clock(self) -> KernelClock:
        return _ask("adjtimex", self._kernel.clock)

    def pfc(self, netdev: str) -> Pfc:
        """Priority flow control of a network device. NotFound where its driver knows nothing of it."""
        try:
            return _ask(f"read PFC of {netdev}", lambda: self._kernel.pfc(netdev))
        except Unknown as error:
            if os.strerror(errno.EOPNOTSUPP) in str(error):
                raise NotFound(str(error)) from None
            raise

    def environ(self) -> Mapping[str, str]:
        return _ask("read the environment", self._kernel.environ)

    def time(self) -> float:
        """Unix time, seconds."""
        return _ask("read the time", self._kernel.time)

    def nvml(self, init_limit_seconds: float) -> Nvml:
        """What NVML says, asked once in a process. `init_limit_seconds`: how long its start may take."""
        if self._nvml is None:
            self._nvml = self._recorded_nvml() if self.recorded else self._live_nvml(init_limit_seconds)
        return self._nvml

    def _recorded_nvml(self) -> Nvml:
        try:
            return wire.decode(self.read_bytes(NVML_PATH), Nvml)
        except wire.WireError as error:
            raise Unknown(f"{NVML_PATH} is damaged: {error}") from None

    def _live_nvml(self, init_limit_seconds: float) -> Nvml:
        from laggard.probes.nvml.live import read_nvml  # pynvml takes longer to import than all the rest

        say = self.progress.say if self.progress else lambda text, seconds: None
        return read_nvml(say, init_limit_seconds)

    def kernel_log(self) -> str:
        """Records of the kernel's log since boot, as /dev/kmsg gives them; see kernel_log.py."""
        if self.recorded:
            return self.read_bytes(KMSG_PATH).decode(errors="replace")
        return _ask("read /dev/kmsg", read_kmsg)

    def node(self) -> str:
        """The name this machine is reported under; a recording without one goes by its folder's name."""
        return self._chosen_name() or self._kernel_name() or os.path.basename(self.root) or "unknown"

    def _chosen_name(self) -> str:
        try:
            return self.environ().get(ENV_NODE, "")
        except Unknown:
            return ""

    def _kernel_name(self) -> str:
        try:
            return self.read("/proc/sys/kernel/hostname").strip()
        except Unknown:
            return ""

    def _read(self, path: str) -> bytes:
        descriptor = os.open(self._locate(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = chunk = os.read(descriptor, _CHUNK_BYTES)
            while chunk and len(data) <= MOST_BYTES:
                chunk = os.read(descriptor, _CHUNK_BYTES)
                data += chunk
        finally:
            os.close(descriptor)
        if not data:
            self._check_refusal("read", path)
        return data

    def _list(self, path: str) -> list[str]:
        names = os.listdir(self._locate(path))
        if not names:
            self._check_refusal("list", path)
        return names

    def _check_refusal(self, verb: str, path: str) -> None:
        """What is empty in a recording may stand for what could not be read."""
        if isinstance(self._kernel, RecordedKernel):
            self._kernel.refused(f"{verb} {self._locate(path)[len(self.root) :]}")

    def _read_parts(self, path: str, look: Callable[[Callable[[int, int], bytes]], T]) -> T:
        descriptor = os.open(self._locate(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self.recorded and not os.fstat(descriptor).st_size:
                self._check_refusal("read", path)
            return look(lambda offset, size: os.pread(descriptor, size, offset))
        finally:
            os.close(descriptor)

    def _locate(self, path: str) -> str:
        return self._tree.locate(path) if self.recorded else path


def _ask(what: str, question: Callable[[], T]) -> T:
    try:
        return question()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"cannot {what}: {error.strerror}") from None
    except OSError as error:
        raise Unknown(f"cannot {what}: {error.strerror or error}") from None


def open_host(root: str | None) -> Host:
    if root is None:
        return Host()
    if not os.path.isdir(root):
        raise UsageError(f"no directory {root}: --host-root takes the folder of a recorded machine")
    if os.path.realpath(root) == "/":
        raise UsageError("--host-root / is this machine itself: leave the flag out")
    return Host(root)
