"""A Host that records everything it reads in a folder, so that the folder can stand for the machine (`--host-root`).

Probes run in processes of their own. Each process writes files directly into the folder, and answers that are not files
into a journal, which journal.py turns into documents at the end. A file that could not be read is recorded as an empty
placeholder and an error; so is a file that was only listed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar, cast

from laggard import wire
from laggard.nccl.variables import may_be_shown
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host, ReadAt
from laggard.probes.host.kernel import RecordedTree
from laggard.probes.host.kernel_log import KMSG_PATH
from laggard.probes.nvml.model import NVML_PATH, Nvml
from laggard.probes.record.journal import NOT_RECORDED, JournalEntry, journal_path

T = TypeVar("T")

_SELF: Final = "/proc/self"  # its target differs from process to process, so it is recorded as a folder
_ENVIRON: Final = re.compile(r"/proc/(self|\d+)/environ")
_OWN_VARIABLES: Final = (
    "NCCL_",
    "SLURM_",
    "SLURMD_",
    "CUDA_",
    "NVIDIA_",
    "UCX_",
    "LAGGARD_",
    "KUBERNETES_SERVICE_HOST",
)
_VARIABLES: Final = ("NCCL_", "HOME=")
_SECRET: Final = re.compile("AUTH|CREDENTIAL|JWT|KEY|PASS|SECRET|TOKEN")
"""The words in a variable's name that mark a secret: SLURM_JWT, NVIDIA_API_KEY, LAGGARD_RING_TOKEN."""
_CONF_FILE: Final = "NCCL_CONF_FILE="
_CONF_NAME: Final = "nccl.conf"
_OTHER_ROOT: Final = re.compile(r"/proc/[0-9]+/root(?=/)")


class _LinkRecorder(RecordedTree):
    """Follows the symlinks of the machine that is recorded, and records each."""

    def __init__(self, root: str, record: Callable[[str, str], None]) -> None:
        super().__init__(root)
        self._record = record

    def read_link(self, inside: str) -> str:
        place = inside[len(self.root) :]
        if place == _SELF:
            raise OSError(errno.EINVAL, "it is recorded as a folder")
        target = super().read_link(inside)
        self._record(place, target)
        return target


class RecordingHost(Host):
    """Answers as the Host of `root` does, and records the answers below `folder`."""

    def __init__(self, root: str, folder: str) -> None:
        super().__init__(root)
        self._folder = folder
        self._resolved: dict[str, str] = {}  # folders by path: where they are once symlinks are followed
        self._folders: set[str] = set()  # made in the recording, no symlink among them
        self._conf_files: set[str] = set()  # that processes name: they may be any files

    def _list(self, path: str) -> list[str]:
        place = self._resolve(path)
        try:
            names = super()._list(path)
        except OSError as error:
            self._record_refusal("list", place, error)
            raise
        self._make_folder(self._folder + place)
        for name in names:
            self._record_listed(f"{place}/{name}")
        return names

    def read_link(self, path: str) -> str:
        target = super().read_link(path)
        folder, _, name = path.rpartition("/")
        self._write_link(f"{self._resolve(folder)}/{name}", target)
        return target

    def nvml(self, start_seconds: float) -> Nvml:
        nvml = super().nvml(start_seconds)
        self._write_file(NVML_PATH, wire.encode(nvml))
        return nvml

    def kernel_log(self) -> str:
        try:
            log = super().kernel_log()
        except Unknown as error:
            if not self.recorded:
                self._write_placeholder(KMSG_PATH, _kernel_message(error))
            raise
        self._write_file(KMSG_PATH, log.encode())
        return log

    def _read(self, path: str) -> bytes:
        return self._read_and_record(path, lambda: Host._read(self, path))

    def _read_users_file(self, path: str, pid: str) -> bytes:
        return self._read_and_record(path, lambda: Host._read_users_file(self, path, pid))

    def _read_and_record(self, path: str, read: Callable[[], bytes]) -> bytes:
        place = self._resolve(path)
        with contextlib.suppress(OSError):  # all probes judge one machine, though mounts and counters change meanwhile
            if first := self._recorded_before(self._folder + place):
                return first
        try:
            data = read()
        except OSError as error:
            self._record_refusal("read", place, error)
            raise
        if _ENVIRON.fullmatch(place):
            data = _without_secrets(data)
            self._conf_files.update(word[len(_CONF_FILE) :] for word in _words(data) if word.startswith(_CONF_FILE))
        elif _OTHER_ROOT.sub("", path) in self._conf_files or place.endswith(_CONF_NAME):
            data = _settings_alone(data)
        self._write_file(place, data)
        return data

    @staticmethod
    def _recorded_before(path: str) -> bytes:
        """What another probe has read of the file; nothing where a symlink leads away from the recording."""
        return Path(path).read_bytes() if os.path.realpath(path) == path else b""

    def _read_parts(self, path: str, parse: Callable[[ReadAt], T]) -> T:
        """Records the parts that `parse` reads, and zeros between them."""
        content = bytearray()

        def parse_and_record(read: ReadAt) -> T:
            def read_and_record(offset: int, size: int) -> bytes:
                data = read(offset, size)
                content.extend(bytes(max(0, offset + len(data) - len(content))))
                content[offset : offset + len(data)] = data
                return data

            return parse(read_and_record)

        place = self._resolve(path)
        try:
            result = super()._read_parts(path, parse_and_record)
        except OSError as error:
            self._record_refusal("read", place, error)
            raise
        self._write_file(place, bytes(content))
        return result

    def _ask(self, kind: str, key: str, action: str, ask: Callable[[], T]) -> T:
        """Of an environment only the variables that probes may use: it holds secrets."""
        try:
            answer = super()._ask(kind, key, action, ask)
        except NotFound:
            raise
        except Unknown as error:
            self._add_entry(JournalEntry("errors", action, _kernel_message(error)))
            raise
        if kind == "environ":
            answer = cast(T, dict(_own_variables(cast("Mapping[str, str]", answer))))
        self._add_entry(JournalEntry(kind, key, answer))
        return answer

    def _resolve(self, path: str) -> str:
        """The place of `path` once its symlinks are followed. Records those symlinks."""
        folder, _, name = path.rstrip("/").rpartition("/")
        if not name or name == "..":
            return self._follow_links(path)
        if folder not in self._resolved:
            self._resolved[folder] = self._follow_links(folder)
        place = f"{self._resolved[folder]}/{name}"
        return self._follow_links(path) if os.path.islink(self._source(place)) and place != _SELF else place

    def _follow_links(self, path: str) -> str:
        """Resolves as _resolve() does, without the cache. Returns an empty text for the root itself."""
        root = self._source("")
        return _LinkRecorder(root, self._write_link).resolve(path)[len(root) :]

    def _source(self, place: str) -> str:
        return place if not self.recorded else self.root + place

    def _record_listed(self, place: str) -> None:
        """Records enough of a folder's entry that the folder is listed in the same way."""
        with contextlib.suppress(OSError):
            kind = os.lstat(self._source(place)).st_mode
            if stat.S_ISLNK(kind):
                in_proc = place.startswith("/proc/") and place != _SELF  # which files a process has open is private
                self._write_link(place, NOT_RECORDED if in_proc else os.readlink(self._source(place)), replace=False)
            elif stat.S_ISDIR(kind):
                self._make_folder(self._folder + place)
            else:
                self._write_placeholder(place, NOT_RECORDED)

    def _record_refusal(self, verb: str, place: str, error: Exception) -> None:
        """Records a file or folder that exists and could not be read. What does not exist needs no record."""
        if not os.path.lexists(self._source(place)):
            return
        if os.path.isdir(self._source(place)):
            self._make_folder(self._folder + place)
            if verb == "list":
                self._add_entry(JournalEntry("refused", f"list {place}", _kernel_message(error)))
        elif verb == "read":
            self._write_placeholder(place, _kernel_message(error))

    def _write_placeholder(self, place: str, reason: str) -> None:
        path = self._folder + place
        self._make_parent(path)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        self._add_entry(JournalEntry("refused", f"read {place}", reason))

    def _write_file(self, place: str, data: bytes) -> None:
        path = self._folder + place
        self._make_parent(path)
        temporary = f"{path}.{os.getpid()}.new"
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        if not data:
            self._add_entry(JournalEntry("empty", place, ""))

    def _write_link(self, place: str, target: str, replace: bool = True) -> None:
        path = self._folder + place
        self._make_parent(path)
        if os.path.islink(path) and replace and os.readlink(path) != target:
            os.unlink(path)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)

    def _make_parent(self, path: str) -> None:
        self._make_folder(os.path.dirname(path))

    def _make_folder(self, folder: str) -> None:
        """Also makes those above it. Raises OSError where one of them was recorded as a symlink before: a user who
        replaces a folder of theirs by one, and back, must not lead this process, which may be root's, elsewhere."""
        if folder in self._folders:
            return
        made = self._folder
        for name in filter(None, folder[len(self._folder) :].split("/")):
            made = f"{made}/{name}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(made)
            if os.path.islink(made):
                raise OSError(errno.ELOOP, "it became a symlink, or ceased to be one, while it was recorded")
        self._folders.add(folder)

    def _add_entry(self, entry: JournalEntry) -> None:
        with open(journal_path(self._folder, os.getpid()), "ab") as file:
            file.write(wire.encode(entry) + b"\n")


def _own_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Those that probes may use. Of NCCL's only names where a value may be a secret."""
    for name, value in environ.items():
        if name.startswith("NCCL_"):
            yield name, value if may_be_shown(name) else ""
        elif name.startswith(_OWN_VARIABLES) and not _SECRET.search(name):
            yield name, value


def _without_secrets(environ: bytes) -> bytes:
    """Only those variables of another process's environment that the probe for NCCL's variables uses; without the
    value where that may be a secret."""
    return "\0".join(map(_shown, filter(lambda word: word.startswith(_VARIABLES), _words(environ)))).encode()


def _words(environ: bytes) -> list[str]:
    return [word.decode(errors="replace") for word in environ.split(b"\0")]


def _shown(setting: str) -> str:
    """NAME=VALUE, or no more of the value than a quote or blank that NCCL would take for a part of it."""
    name, sign, value = setting.partition("=")
    if name == "HOME" or may_be_shown(name.removeprefix("export ").strip()):
        return setting
    return name + sign + (value[:1] if value[:1] in "\"'" else " " * (value != value.strip()))


def _settings_alone(conf: bytes) -> bytes:
    """A settings file of NCCL's with its lines in their places, of which those that NCCL skips are empty. What is not
    text stays so."""
    try:
        lines = conf.decode().split("\n")
    except UnicodeDecodeError:
        return b"\0"
    kept = (_shown(line) if "NCCL_" in line.partition("=")[0] and not line.startswith("#") else "" for line in lines)
    return "\n".join(kept).encode()


def _kernel_message(error: Exception) -> str:
    """The kernel's message alone: when the recording is read, Host puts it into the same sentence again."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).rpartition(": ")[2]
