"""Answers of a recorded machine that were not files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from laggard import wire
from laggard.probes.host.kernel import (
    FACTS_PATH,
    PFC_PATH,
    REFUSED_PATH,
    REPLIES_PATH,
    FileSystem,
    KernelClock,
    Pfc,
    RecordedFacts,
    StatvfsReply,
    Usage,
)

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

    def _walk(self, place: str, path: str, links: int) -> str:
        if path.startswith("/"):
            place = self.root
        for name in path.split("/"):
            if name == "..":
                place = place if place == self.root else os.path.dirname(place)
            elif name not in ("", "."):
                place = self._steps.get((place, name)) or self._step(place, name, links)
        return place

    def _step(self, place: str, name: str, links: int) -> str:
        inside = f"{place}/{name}"
        try:
            target = os.readlink(inside)
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

    def environ(self) -> Mapping[str, str]:
        return self._load().environ

    def time(self) -> float:
        return self._load().time

    def file_system(self, path: str) -> FileSystem:
        facts = self._load()
        if path in facts.file_systems:
            return facts.file_systems[path]
        raise OSError(errno.EIO, facts.errors.get(f"statvfs {path}", f"not recorded in {FACTS_PATH}"))

    def usage(self, path: str) -> Usage:
        usages = self._load().usages
        if path in usages:
            return usages[path]
        raise OSError(errno.EIO, f"not recorded in {FACTS_PATH}")

    def clock(self) -> KernelClock:
        facts = self._load()
        if facts.clock is not None:
            return facts.clock
        raise OSError(errno.EIO, facts.errors.get("adjtimex", f"not recorded in {FACTS_PATH}"))

    def pfc(self, netdev: str) -> Pfc:
        known = self._recorded(PFC_PATH, dict[str, Pfc | None])
        if netdev not in known:
            raise OSError(errno.EIO, f"not recorded in {PFC_PATH}")
        answer = known[netdev]
        if answer is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return answer

    def statvfs_replies(self, points: Mapping[str, Sequence[str]], seconds: float) -> Mapping[str, StatvfsReply]:
        known = self._recorded(REPLIES_PATH, dict[str, StatvfsReply])
        missing = StatvfsReply(error=f"not recorded in {REPLIES_PATH}")
        return {point: known.get(point, missing) for group in points.values() for point in group}

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
