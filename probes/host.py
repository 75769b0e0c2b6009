"""The machine as a probe sees it. Probes touch the machine through a Host and in no other way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from laggard.names import ENV_NODE
from laggard.probes.kernel import FileSystem, Kernel, KernelClock, LiveKernel
from laggard.probes.recorded import RecordedKernel, resolve
from laggard.probes.shape import Missing, Unknown

T = TypeVar("T")

MOST_BYTES: Final = 4 << 20
"""No file that a probe reads is near this size; what is larger is not what it seems."""

_CHUNK_BYTES: Final = 1 << 16  # /proc/sys reserves what a read asks for, and refuses megabytes


class Host:
    """A live machine, or a recorded one: then nothing at all is read from the machine that laggard runs on.

    Every method raises Unknown, with the path and the kernel's reason, where the machine gives no answer, so that a
    probe that does not care fails safe; Missing, a kind of Unknown, where there is no such file.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        self.recorded = self.root != "/"
        self._kernel: Kernel = RecordedKernel(self.root) if self.recorded else LiveKernel()

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

    def entries(self, path: str) -> tuple[str, ...]:
        """The names in the directory at `path`, sorted."""
        return tuple(sorted(_ask(f"list {path}", lambda: os.listdir(self._locate(path)))))

    def file_system(self, path: str) -> FileSystem:
        """How full the file system mounted at `path` is. May hang on a dead server."""
        return _ask(f"statvfs {path}", lambda: self._kernel.file_system(path))

    def clock(self) -> KernelClock:
        return _ask("adjtimex", self._kernel.clock)

    def environ(self) -> Mapping[str, str]:
        return _ask("read the environment", self._kernel.environ)

    def time(self) -> float:
        """Unix time, seconds."""
        return _ask("read the time", self._kernel.time)

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
            return data
        finally:
            os.close(descriptor)

    def _locate(self, path: str) -> str:
        return resolve(self.root, path) if self.recorded else path


def _ask(what: str, question: Callable[[], T]) -> T:
    try:
        return question()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Missing(f"cannot {what}: {error.strerror}") from None
    except OSError as error:
        raise Unknown(f"cannot {what}: {error.strerror or error}") from None
