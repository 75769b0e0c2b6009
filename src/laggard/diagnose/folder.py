"""Walks folders for the files that `laggard diagnose` is to read: within bounds, and never out of the folder. Links are
not followed, and what is no regular file is not opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.input_file import BEGINNING_BYTES, END_BYTES, InputFile
from laggard.kit.words import counted, natural

MAX_FILES: Final = 20_000
"""The most files of all folders of a call that are read."""
MAX_DEPTH: Final = 12
"""The deepest folder within a folder that is looked into."""
MAX_FOLDER_BYTES: Final = 8 << 30
"""The most bytes of folders' files that are read. Of a large file its beginning and its end count."""
_MAX_ENTRIES: Final = 200_000
_KEPT_BYTES: Final = 16 << 20
"""The most bytes of a folder that are held while it is judged; files of a larger one are read again when needed."""
_PIECE_BYTES: Final = 1 << 20


class GivenFile(NamedTuple):
    """A file to be read, with the words of its path below what was given: those may name its host and rank."""

    file: InputFile
    words: tuple[str, ...]
    same: tuple[tuple[str, ...], ...] = ()
    """The words of other files that hold the same bytes. They are not read."""


class Given(NamedTuple):
    files: tuple[GivenFile, ...]
    notes: tuple[str, ...] = ()
    """The files that were not read, and why."""
    of_folder: bool = False


class _Entry(NamedTuple):
    path: str
    words: tuple[str, ...]
    size: int


def given_files(paths: Sequence[str]) -> Given:
    """Returns the files of a command line: those that are named, and those of folders that are. Raises UsageError for
    what is neither, when it is read."""
    folders = [path for path in paths if os.path.isdir(path)]
    named = [
        GivenFile(InputFile(path), tuple(os.path.normpath(path).split(os.sep)[-3:]))
        for path in paths
        if path not in folders
    ]
    walk = _Walk()
    for folder in folders:
        walk.into(folder, (), 0)
    return Given((*named, *walk.files()), tuple(walk.notes()), bool(folders))


class _Walk:
    """Holds what was found and what was passed over."""

    def __init__(self) -> None:
        self._found: list[_Entry] = []
        self._looked_at = 0
        self._bytes = 0
        self._passed: dict[str, list[str]] = {}

    def into(self, folder: str, words: tuple[str, ...], depth: int) -> None:
        for entry in self._entries(folder):
            self._looked_at += 1
            if self._looked_at > _MAX_ENTRIES:
                return self._pass("more entries than are looked at", entry.path)
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                self.into(entry.path, (*words, entry.name), depth + 1)
            elif reason := self._refused(status):
                self._pass(reason, entry.path)
            else:
                self._found.append(_Entry(entry.path, (*words, entry.name), status.st_size))
                self._bytes += min(status.st_size, BEGINNING_BYTES + END_BYTES)

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: natural(entry.name))
        except OSError as error:
            self._pass(error.strerror or "folder that cannot be read", folder)
            return []

    def _refused(self, status: os.stat_result) -> str:
        if stat.S_ISDIR(status.st_mode):
            return f"folder below {MAX_DEPTH} others"
        if stat.S_ISLNK(status.st_mode):
            return "symbolic link"
        if not stat.S_ISREG(status.st_mode):
            return "pipe, socket or device"
        if len(self._found) >= MAX_FILES:
            return f"file beyond the first {MAX_FILES:,}"
        return f"file beyond the first {MAX_FOLDER_BYTES >> 30} GiB" if self._bytes >= MAX_FOLDER_BYTES else ""

    def _pass(self, reason: str, path: str) -> None:
        self._passed.setdefault(reason, []).append(path)

    def notes(self) -> Iterator[str]:
        for reason, paths in self._passed.items():
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            yield f"not read ({reason}): {paths[0]}{more}"

    def files(self) -> Iterator[GivenFile]:
        """Yields each content once, with the names of the files that have it too. Those that are empty are not told
        apart."""
        sizes: dict[int, int] = {}
        for entry in self._found:
            sizes[entry.size] = sizes.get(entry.size, 0) + 1
        first: dict[object, _Entry] = {}
        others: dict[str, list[tuple[str, ...]]] = {}
        for entry in self._found:
            key = _content_key(entry) if entry.size and sizes[entry.size] > 1 else entry.path
            kept = first.setdefault(key, entry)
            others.setdefault(kept.path, [])
            if kept is not entry:
                others[kept.path].append(entry.words)
        if same := sum(map(len, others.values())):
            self._passed.setdefault(f"{counted(same, 'file')} with the same content as another", []).append(
                next(path for path, twins in others.items() if twins)
            )
        keeps = self._bytes <= _KEPT_BYTES
        return (GivenFile(InputFile(it.path, keeps), it.words, tuple(others[it.path])) for it in first.values())


def _content_key(entry: _Entry) -> object:
    """The digest of the content; the path where it is large, or cannot be read."""
    if entry.size > BEGINNING_BYTES + END_BYTES:
        return entry.path
    import hashlib  # loads OpenSSL, which few calls need

    digest = hashlib.blake2b(digest_size=16)
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
    except OSError:
        return entry.path
    return entry.size, digest.digest()
