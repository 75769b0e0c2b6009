"""What a machine answers beside its files, and how a recording holds it. live.py asks a live machine.

The constants are paths in the folder of a recorded machine.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from laggard import wire
from laggard.probes.host.program import ProgramEnd

FACTS_PATH: Final = "/laggard/facts.json"
"""A JSON document of the shape of RecordedFacts."""
REPLIES_PATH: Final = "/laggard/replies.json"
"""The path of the document with a StatvfsReply by mount point."""
REFUSED_PATH: Final = "/laggard/refused.json"
"""The file of what could not be read, and of the kernel's error messages: `{"read /PATH": "Permission denied"}`."""
PLACES_PATH: Final = "/laggard/places.json"
"""The kinds and modes of places, as Host.places() has them: `{"/dev/null": "crw-rw-rw- 1:3"}`."""
PFC_PATH: Final = "/laggard/pfc.json"
"""Priority flow control by network device: `{"eth0": {"enabled": 8, "capable": 8}}`, or null where the driver does not
support it."""


class FileSystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """statvfs of a mount point. `available` is what unprivileged processes may still use. 0 `inodes`: the file system
    does not count them."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    inodes_available: int


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The users whose files fill a file system: bytes by uid. `complete`: whether all files were seen; those that are
    deleted and still open never are. `for_all`: whether every user may write to its topmost folder."""

    bytes_by_user: dict[str, int]
    complete: bool
    for_all: bool


class KernelClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that adjtimex(2) returns: the return value (`state`), the STA_* bits (`status`), and offset and errors
    in seconds."""

    state: int
    status: int
    offset_seconds: float
    maximum_error_seconds: float
    estimated_error_seconds: float


class StatvfsReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of statvfs on a mount point: success where both fields are empty. `error`: the kernel's message;
    `silent_seconds`: for how long there has been no answer."""

    error: str = ""
    silent_seconds: float = 0.0


class Pfc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Priority flow control of a network device. `enabled` has a bit for each priority with flow control; `capable` is
    the number of priorities that may have it at once."""

    enabled: int
    capable: int

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(priority for priority in range(8) if self.enabled >> priority & 1)


class RecordedFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answers of a machine that are not files. `errors` holds the calls that failed, "statvfs /mnt" or "adjtimex",
    with the kernel's message."""

    laggard_machine: int = 1  # the version of this document
    time: float  # Unix time of the recording
    environ: dict[str, str] = {}
    file_systems: dict[str, FileSystem] = {}  # by mount point
    usages: dict[str, Usage] = {}  # by mount point, of those that are nearly full
    clock: KernelClock | None = None
    programs: dict[str, ProgramEnd] = {}  # of the site's own checks, by name
    errors: dict[str, str] = {}


DOCUMENTS: Final[Mapping[str, tuple[str, Any]]] = {
    "pfc": (PFC_PATH, dict[str, Pfc | None]),
    "places": (PLACES_PATH, dict[str, str]),
    "replies": (REPLIES_PATH, dict[str, StatvfsReply]),
}
"""The kinds of answers with a document of their own, by key: its path and its type. Other kinds are the fields of
RecordedFacts."""


# Answers of a recorded machine that were not files.

_MAX_LINKS: Final = 40  # the kernel's own limit (path_resolution(7))


class RecordedTree:
    """Follows symlinks as if `root` were `/`, so that none leads out of it. Resolved folders are cached: probes read
    many files of few folders, and each part of a path costs a system call."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._places: dict[str, str] = {}
        self._steps: dict[tuple[str, str], str] = {}

    def resolve(self, path: str) -> str:
        """The place of `path`, whether or not it exists. Raises OSError (ELOOP) where symlinks form a loop."""
        place = self._places.get(path)
        if place is None:
            place = self._places[path] = self._walk(self.root, path, 0)
        return place

    def locate(self, path: str) -> str:
        """The same for a file: only the place of its folder is cached."""
        folder, _, name = path.rpartition("/")
        place = f"{self.resolve(folder)}/{name}"
        return self.resolve(path) if name in ("", ".", "..") or os.path.islink(place) else place

    def read_link(self, inside: str) -> str:
        """The target of the symlink at `inside`. Raises OSError where it is none."""
        return os.readlink(inside)

    def _walk(self, place: str, path: str, links: int) -> str:
        if path.startswith("/"):
            place = self.root
        for name in path.split("/"):
            if name == "..":
                place = place if place == self.root else place.rpartition("/")[0]
            elif name not in ("", "."):
                place = self._steps.get((place, name)) or self._step(place, name, links)
        return place

    def _step(self, place: str, name: str, links: int) -> str:
        inside = f"{place}/{name}"
        try:
            target = self.read_link(inside)
        except OSError:  # not a symlink, or no such file: opening it will show which
            resolved = inside
        else:
            if links == _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), inside)
            resolved = self._walk(place, target, links + 1)
        self._steps[place, name] = resolved
        return resolved


def open_regular(path: str) -> int:
    """Opens a file of a recording. Raises OSError where it is none: to open a FIFO would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is no regular file")


T = TypeVar("T")

_MAX_BYTES: Final = 64 << 20  # many times the answers of a machine with thousands of mounts
_ERROR_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


class RecordedKernel:
    """Answers from the recording alone. What the recording does not hold raises OSError, and is never guessed."""

    def __init__(self, tree: RecordedTree) -> None:
        self._tree = tree
        self._facts: RecordedFacts | None = None
        self._refusals: dict[str, str] | None = None

    def answer(self, kind: str, key: str, action: str) -> Any:
        """The recorded answer of this kind to `key`, or without a key all of them. `action`: the call that it was."""
        if kind in DOCUMENTS:
            (path, shape), errors = DOCUMENTS[kind], dict[str, str]()
            answers = self._recorded(path, shape)
        else:
            facts = self._load()
            path, answers, errors = FACTS_PATH, getattr(facts, kind), facts.errors
        if key in answers if key else answers is not None:
            return answers[key] if key else answers
        raise OSError(errno.EIO, errors.get(action, f"not recorded in {path}"))

    def modes(self, paths: Sequence[str]) -> Mapping[str, str]:
        """What a recording shows by the modes of its own files, in the form of Host.places(): one that was copied with
        its modes has a sticky folder among `paths`. A file stands in for a device, and says nothing where its mode is
        what each new file has. Raises OSError."""
        told = {path: mode for path in paths if (mode := self._mode(path)) and mode != "-rw-r--r--"}
        if not any(mode.endswith("t") for mode in told.values()):
            raise OSError(errno.EIO, f"not recorded in {PLACES_PATH}")
        return {path: mode if mode[0] == "d" else "c" + mode[1:] for path, mode in told.items()}

    def _mode(self, path: str) -> str:
        place = self._tree.resolve(path)
        return stat.filemode(os.stat(place).st_mode) if os.path.exists(place) else ""

    def check_refusal(self, action: str) -> None:
        """Raises the OSError that `action` got on the machine, if it got one: the recording has an empty file or folder
        in that place. `action`: "read /PATH" or "list /PATH", the path with its symlinks followed."""
        if self._refusals is None:
            try:
                self._refusals = self._document(REFUSED_PATH, dict[str, str])
            except OSError:
                self._refusals = {}
        message = self._refusals.get(action)
        if message is not None:
            raise OSError(_ERROR_NUMBERS.get(message, errno.EIO), message)

    def _load(self) -> RecordedFacts:
        if self._facts is None:
            try:
                self._facts = self._document(FACTS_PATH, RecordedFacts)
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, f"the recording has no {FACTS_PATH}") from None
        return self._facts

    def _recorded(self, path: str, kind: type[T]) -> T:
        """The document as by _document(), but where the file is missing the answer counts as not recorded."""
        try:
            return self._document(path, kind)
        except FileNotFoundError:
            raise OSError(errno.EIO, f"not recorded in {path}") from None

    def _document(self, path: str, kind: type[T]) -> T:
        """The document at `path`. Raises OSError, also where it is too large or not of `kind`."""
        with open(open_regular(self._tree.resolve(path)), "rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"{path} is larger than {_MAX_BYTES >> 20} MiB")
        try:
            return wire.decode(data, kind)
        except wire.WireError as error:
            raise OSError(errno.EINVAL, f"{path} is damaged: {error}") from None
