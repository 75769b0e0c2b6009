"""Resolves paths in a folder that stands for `/`."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

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
