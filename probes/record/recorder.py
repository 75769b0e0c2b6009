"""A Host that keeps all it reads in a folder, so that the folder can stand for the machine (`--host-root`).

Probes run in processes of their own: each writes files straight into the folder, and what is not a file into notes,
which recording_notes.py puts together at the end. A file that could not be read is kept as an empty one with its error
beside it; so is one that was only listed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from laggard import wire
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import FileSystem, KernelClock, Pfc, StatvfsReply
from laggard.probes.host.kernel_log import KMSG_PATH
from laggard.probes.nvml.model import NVML_PATH, Nvml
from laggard.probes.record.journal import NOT_RECORDED, Note, notes_path

T = TypeVar("T")

_MOST_PARTS: Final = 256
_SELF: Final = "/proc/self"  # a symlink to another number for each process that looks: kept as a folder
_ENVIRON: Final = re.compile(r"/proc/(self|\d+)/environ")
_OWN_VARIABLES: Final = ("NCCL_", "SLURM_", "SLURMD_", "CUDA_", "NVIDIA_", "UCX_", "LAGGARD_")
_VARIABLES: Final = ("NCCL_", "HOME=")
_SECRETS: Final = ("NCCL_SOCKET_MAGIC=", "NCCL_COMM_ID=")


class RecordingHost(Host):
    """Answers as the Host of `root` does, and keeps the answers below `folder`."""

    def __init__(self, root: str, folder: str) -> None:
        super().__init__(root)
        self._folder = folder
        self._places: dict[str, str] = {}  # of folders, with their symlinks followed
        self._made: set[str] = set()

    def entries(self, path: str) -> tuple[str, ...]:
        place = self._place(path)
        try:
            names = super().entries(path)
        except Unknown as error:
            self._refused("list", path, place, error)
            raise
        os.makedirs(self._folder + place, exist_ok=True)
        for name in names:
            self._listed(f"{place}/{name}")
        return names

    def read_link(self, path: str) -> str:
        target = super().read_link(path)
        folder, _, name = path.rpartition("/")
        self._keep_link(f"{self._place(folder)}/{name}", target)
        return target

    def file_system(self, path: str) -> FileSystem:
        return self._answer("file_system", path, lambda: Host.file_system(self, path))

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]:
        replies = super().statvfs_replies(points, seconds)
        for point, reply in replies.items():
            self._note(Note("reply", point, wire.encode(reply).decode()))
        return replies

    def clock(self) -> KernelClock:
        return self._answer("clock", "", lambda: Host.clock(self))

    def pfc(self, netdev: str) -> Pfc:
        try:
            return self._answer("pfc", netdev, lambda: Host.pfc(self, netdev))
        except NotFound:
            self._note(Note("pfc", netdev, "null"))
            raise

    def environ(self) -> Mapping[str, str]:
        """Only what a probe may ask of: an environment holds secrets."""
        kept = {name: value for name, value in super().environ().items() if name.startswith(_OWN_VARIABLES)}
        self._note(Note("environ", "", wire.encode(kept).decode()))
        return kept

    def time(self) -> float:
        return self._answer("time", "", lambda: Host.time(self))

    def nvml(self, init_limit_seconds: float) -> Nvml:
        nvml = super().nvml(init_limit_seconds)
        self._keep(NVML_PATH, wire.encode(nvml))
        return nvml

    def kernel_log(self) -> str:
        try:
            log = super().kernel_log()
        except Unknown as error:
            if not self.recorded:
                self._stand_in(KMSG_PATH, _words(error))
            raise
        self._keep(KMSG_PATH, log.encode())
        return log

    def _read(self, path: str) -> bytes:
        place = self._place(path)
        try:
            data = super()._read(path)
        except OSError as error:
            self._refused("read", path, place, error)
            raise
        if _ENVIRON.fullmatch(place):
            data = _without_secrets(data)
        self._keep(place, data)
        return data

    def _read_parts(self, path: str, look: Callable[[Callable[[int, int], bytes]], T]) -> T:
        """Keeps what was looked at; between that, zeros."""
        seen = bytearray()

        def watched(read: Callable[[int, int], bytes]) -> T:
            def noting(offset: int, size: int) -> bytes:
                data = read(offset, size)
                seen.extend(bytes(max(0, offset + len(data) - len(seen))))
                seen[offset : offset + len(data)] = data
                return data

            return look(noting)

        place = self._place(path)
        try:
            found = super()._read_parts(path, watched)
        except OSError as error:
            self._refused("read", path, place, error)
            raise
        self._keep(place, bytes(seen))
        return found

    def _answer(self, kind: str, key: str, ask: Callable[[], T]) -> T:
        try:
            answer = ask()
        except NotFound:
            raise
        except Unknown as error:
            what = {"file_system": f"statvfs {key}", "clock": "adjtimex"}.get(kind, f"{kind} {key}")
            self._note(Note("error", what, _words(error)))
            raise
        self._note(Note(kind, key, wire.encode(answer).decode()))
        return answer

    def _place(self, path: str) -> str:
        """Where `path` is once its symlinks are followed. Those are kept on the way."""
        folder, _, name = path.rstrip("/").rpartition("/")
        if not name or name == "..":
            return self._follow(path)
        if folder not in self._places:
            self._places[folder] = self._follow(folder)
        place = f"{self._places[folder]}/{name}"
        return place if self._target(place) is None else self._follow(path)

    def _follow(self, path: str) -> str:
        """Empty for the root itself."""
        todo, done = [part for part in path.split("/") if part][::-1], ""
        for _ in range(_MOST_PARTS):
            if not todo:
                break
            name = todo.pop()
            if name in (".", ".."):
                done = done.rpartition("/")[0] if name == ".." else done
                continue
            target = self._target(f"{done}/{name}")
            if target is None:
                done = f"{done}/{name}"
                continue
            self._keep_link(f"{done}/{name}", target)
            todo.extend(part for part in target.split("/")[::-1] if part)
            done = "" if target.startswith("/") else done
        return done

    def _target(self, place: str) -> str | None:
        if place == _SELF:
            return None
        try:
            return os.readlink(self._source(place))
        except OSError:
            return None

    def _source(self, place: str) -> str:
        return place if not self.recorded else self.root + place

    def _listed(self, place: str) -> None:
        """An entry of a folder: enough of it that the folder is listed the same."""
        with contextlib.suppress(OSError):
            kind = os.lstat(self._source(place)).st_mode
            if stat.S_ISLNK(kind):
                in_proc = place.startswith("/proc/") and place != _SELF  # what files a process has open is its own
                self._keep_link(place, NOT_RECORDED if in_proc else os.readlink(self._source(place)), replace=False)
            elif stat.S_ISDIR(kind):
                os.makedirs(self._folder + place, exist_ok=True)
            else:
                self._stand_in(place, NOT_RECORDED)

    def _refused(self, verb: str, path: str, place: str, error: Exception) -> None:
        """What is there and could not be read; what is not there needs no keeping."""
        if not os.path.lexists(self._source(place)):
            return
        if os.path.isdir(self._source(place)):
            os.makedirs(self._folder + place, exist_ok=True)
            if verb == "list":
                self._note(Note("refused", f"list {place}", _words(error)))
        elif verb == "read":
            self._stand_in(place, _words(error))

    def _stand_in(self, place: str, why: str) -> None:
        path = self._folder + place
        self._make_room(path)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        self._note(Note("refused", f"read {place}", why))

    def _keep(self, place: str, data: bytes) -> None:
        path = self._folder + place
        self._make_room(path)
        temporary = f"{path}.{os.getpid()}.new"
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        if not data:
            self._note(Note("empty", place, ""))

    def _keep_link(self, place: str, target: str, replace: bool = True) -> None:
        path = self._folder + place
        self._make_room(path)
        if os.path.islink(path) and replace and os.readlink(path) != target:
            os.unlink(path)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)

    def _make_room(self, path: str) -> None:
        folder = os.path.dirname(path)
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def _note(self, note: Note) -> None:
        with open(notes_path(self._folder, os.getpid()), "ab") as file:
            file.write(wire.encode(note) + b"\n")


def _without_secrets(environ: bytes) -> bytes:
    """Of another process's environment what the probe for NCCL's variables asks of, and no more."""
    words = [word.decode(errors="replace") for word in environ.split(b"\0")]
    kept = [word for word in words if word.startswith(_VARIABLES) and not word.startswith(_SECRETS)]
    return "\0".join(kept).encode()


def _words(error: Exception) -> str:
    """The kernel's words alone: they are put into the same sentence again when they are read."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).rpartition(": ")[2]
