"""The files of the rank directory that a scan reads. Any user may write there: the cost of a scan is bounded, and one
user's files, however many and however named, do not push out another's.

Each user's ranks write into a subdirectory of their own, which is sampled by itself. Files in the directory itself, of
users who cannot have a subdirectory, share one sample.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from laggard.agent.ranks.stack_files import is_below, users_mounts
from laggard.kit.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.kit.users import ACCOUNTS
from laggard.rankfile.layout import SHARED_MODE, SUFFIX
from laggard.rankfile.unseen import MARK_SUFFIX, MAX_MARKS
from laggard.wire.ranks import RejectedFiles

MAX_ENTRIES: Final = 65_536
MAX_STATS: Final = 4_096
MAX_FILES: Final = 1_024
MAX_DIRECTORIES: Final = 128
MIN_SUBDIRECTORY_ENTRIES: Final = 256
"""The least number of entries of a subdirectory that are looked at, however many subdirectories there are."""

_MANY_ENTRIES: Final = 1_024
"""The number of entries from which on users' subdirectories are looked for by name as well: they may be hidden among
others."""

_MAX_SEARCHED_ENTRIES: Final = 1 << 20
_MAX_SEARCHED_STATS: Final = 65_536
"""The bounds on the directory itself where a user's place is held by another, so that their files stand in it among
whatever that one puts there: 0.6 s of a scan."""

T = TypeVar("T")


class FileEntry(NamedTuple):
    """A name in the rank directory. `owner`: uid; `changed`: ctime, Unix time, which only the kernel sets."""

    path: str
    owner: int
    changed: float


class Listing(NamedTuple):
    files: tuple[FileEntry, ...]
    left_out: int  # not read in this scan
    marks: tuple[FileEntry, ...] = ()  # of processes that are not seen as ranks
    mounted: tuple[str, ...] = ()  # users' file systems, which are not looked at
    held: tuple[str, ...] = ()  # users' places that another user has taken


class _Names(NamedTuple):
    files: list[str]
    directories: list[str]
    marks: list[str]
    left_out: int  # files
    total: int


def list_files(directory: str, known: Collection[str], max_files: int = MAX_FILES) -> Listing:
    """Lists at most `max_files` files, taken from their owners in turn; an owner's `known` paths come first.

    Where a directory has more names than are worth a system call each, list_files takes a random sample, another one
    each time: a good file is found sooner or later, and is known from then on. Raises OSError where the directory
    cannot be read.
    """
    mounted = users_mounts(directory)
    if mounted:
        known = [path for path in known if not is_below(path, mounted)]
    names = _without_mounts(_sample(directory, known, MAX_ENTRIES, MAX_STATS), mounted)
    users = _users_of_processes() if names.total >= _MANY_ENTRIES else set()
    if held := _held_places(directory, users, mounted):
        searched = _sample(directory, known, _MAX_SEARCHED_ENTRIES, _MAX_SEARCHED_STATS)
        names = _without_mounts(searched, mounted)
    sampled, left_out, marks = names.files, names.left_out, names.marks
    of_users = _user_directories(directory, names, known, users, mounted)
    share = max(MIN_SUBDIRECTORY_ENTRIES, MAX_ENTRIES // max(1, len(of_users)))
    for path in of_users:
        with contextlib.suppress(OSError):  # vanished since, or not readable: its user's loss
            most = max(MIN_SUBDIRECTORY_ENTRIES, MAX_STATS // len(of_users))
            inside = _without_mounts(_sample(path, known, share, most), mounted)
            sampled, left_out, marks = sampled + inside.files, left_out + inside.left_out, marks + inside.marks
    found = [entry for path in (*known, *sampled) if (entry := _stat(path))]
    ranked = sorted(found, key=lambda entry: (entry.path in known, entry.changed), reverse=True)
    chosen = tuple(islice(round_robin(ranked, _account), max_files))
    marked = [entry for path in marks if (entry := _stat(path))]
    told = tuple(islice(round_robin(marked, _account), MAX_MARKS))
    return Listing(chosen, left_out + len(found) - len(chosen), told, mounted, held)


def round_robin(items: Iterable[T], owner_of: Callable[[T], Hashable]) -> Iterator[T]:
    """Yields the first item of every owner, then every owner's second, and so on."""
    queues: dict[Hashable, list[T]] = {}
    for item in items:
        queues.setdefault(owner_of(item), []).append(item)
    for place in range(max(map(len, queues.values()), default=0)):
        for queue in queues.values():
            if place < len(queue):
                yield queue[place]


def _account(entry: FileEntry) -> int:
    return ACCOUNTS.account_of(entry.owner)


def _without_mounts(names: _Names, mounted: tuple[str, ...]) -> _Names:
    """The names, but for those at which a user's file system is mounted."""
    if not mounted:
        return names
    files, directories, marks = (
        [path for path in paths if not is_below(path, mounted)]
        for paths in (names.files, names.directories, names.marks)
    )
    return names._replace(files=files, directories=directories, marks=marks)


def _held_places(directory: str, users: Collection[int], mounted: tuple[str, ...]) -> tuple[str, ...]:
    """The paths where a subdirectory of one of `users` would stand, and something of another user's does."""
    held = []
    for user in users:
        path = os.path.join(directory, str(user))
        entry = None if is_below(path, mounted) else _stat(path)
        if entry is not None and entry.owner not in (user, 0):
            held.append(path)
    return tuple(sorted(held))


def _user_directories(
    directory: str, names: _Names, known: Collection[str], users: Collection[int], mounted: tuple[str, ...]
) -> list[str]:
    """One subdirectory of each user: that of a file which is known, else that named by the uid, else any. `users` are
    looked for by name as well."""
    wanted = {os.path.dirname(path) for path in known} - {directory}
    paths = [*sorted(wanted), *names.directories, *(os.path.join(directory, str(user)) for user in users)]
    of_user: dict[int, tuple[bool, bool, str]] = {}
    for path in dict.fromkeys(paths):
        if is_below(path, mounted):
            continue
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            if stat.S_ISDIR(about.st_mode):
                rating = path in wanted, os.path.basename(path) == str(about.st_uid), path
                of_user[about.st_uid] = max(rating, of_user.get(about.st_uid, rating))
    chosen = round_robin(of_user.items(), lambda item: ACCOUNTS.account_of(item[0]))
    return [path for _, (_, _, path) in islice(chosen, MAX_DIRECTORIES)]


def _users_of_processes(proc: str = "/proc") -> set[int]:
    users = set()
    for name in islice(filter(str.isdigit, os.listdir(proc)), MAX_ENTRIES):
        with contextlib.suppress(OSError):  # ended since
            users.add(os.stat(os.path.join(proc, name)).st_uid)
    return users


def _sample(directory: str, known: Collection[str], max_entries: int, max_files: int) -> _Names:
    """The names of at most `max_files` files that are not known, and of as many directories; and how many other files
    there are. Reservoir sampling: the directory may hold more names than are worth keeping in memory."""
    kept: list[str] = []
    directories: list[str] = []
    marks: list[str] = []
    count = total = 0
    with os.scandir(directory) as entries:
        for entry in islice(entries, max_entries):
            total += 1
            if entry.name.endswith(SUFFIX):
                if entry.path in known:
                    continue
                count += 1
                if len(kept) < max_files:
                    kept.append(entry.path)
                elif (place := random.randrange(count)) < max_files:
                    kept[place] = entry.path
            elif entry.name.endswith(MARK_SUFFIX):
                if len(marks) < MAX_MARKS:
                    marks.append(entry.path)
            elif len(directories) < max_files and entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
    return _Names(kept, directories, marks, count - len(kept), total)


def _stat(path: str) -> FileEntry | None:
    try:
        status = os.lstat(path)
    except OSError:  # vanished since
        return None
    return FileEntry(path, status.st_uid, status.st_ctime)


HOW = "as deploy/systemd/tmpfiles.d/laggard.conf does"


def secure(directory: str) -> str:
    """Makes the rank directory root's, with mode 1777, where this process may and nobody chose another one: the default
    directories are created or taken over. Returns a line that warns where the directory is not safe; else nothing."""
    if os.geteuid() == 0 and directory in (SHARED_RANK_DIR, FALLBACK_RANK_DIR):
        try:
            _take_over(directory)
        except OSError as error:
            return f"cannot make {directory} root's, with mode 1777: {error.strerror}; create it {HOW}"
    return warning(directory)


def warning(directory: str) -> str:
    """The things that are not safe about the directory as it is; empty where there are none."""
    try:
        about = os.stat(directory)
    except FileNotFoundError:
        return (
            f"the rank directory {directory} does not exist: no rank is seen before one creates it, and its user can "
            f"then remove the other users' files; create it {HOW}"
        )
    except OSError as error:
        return f"the rank directory {directory} cannot be read: {error.strerror}"
    if about.st_uid not in (0, os.geteuid()):
        return (
            f"the rank directory {directory} belongs to user {about.st_uid}, who can remove other users' files: "
            f"make it root's {HOW}"
        )
    if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
        return f"in the rank directory {directory} each user can remove the others' files: chmod 1777 {directory}"
    return ""


def _take_over(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != 0:
            os.fchown(fd, 0, 0)
        if stat.S_IMODE(os.fstat(fd).st_mode) != SHARED_MODE:  # in a pod it is right already, and mounted read-only
            os.fchmod(fd, SHARED_MODE)
    finally:
        os.close(fd)


log = logging.getLogger("laggard.agent")

MAX_LOG_LINES: Final = 8
"""The most lines of the log for each scan, so that a user who makes new junk all day does not fill the log."""


class Rejections:
    """The rejected files of one scan after another: begin_scan(), then add() and count(), then end_scan()."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._logged: set[tuple[str, str]] = set()
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}
        self._current: set[tuple[str, str]] = set()

    def begin_scan(self) -> None:
        self._counts, self._examples, self._current = {}, {}, set()

    def add(self, path: str, reason: str) -> None:
        name = _printable(os.path.basename(path))
        self._current.add((name, reason))
        self._examples.setdefault(reason, name)
        self.count(reason, 1)

    def count(self, reason: str, number: int) -> None:
        """Counts files that were not read, or of which no single one is to blame: they have no example and no line in
        the log."""
        if number:
            self._counts[reason] = self._counts.get(reason, 0) + number

    def end_scan(self) -> tuple[RejectedFiles, ...]:
        """Returns what this scan rejected, and logs what the scan before did not reject."""
        new = sorted(self._current - self._logged)
        for name, reason in new[:MAX_LOG_LINES]:
            log.warning("ignoring %s in %s: %s", name, self._directory, reason)
        if len(new) > MAX_LOG_LINES:
            log.warning("ignoring %d more files in %s", len(new) - MAX_LOG_LINES, self._directory)
        self._logged = self._current  # only these: a file that is gone may come back with another fault
        return tuple(
            RejectedFiles(reason, count, self._examples.get(reason, ""))
            for reason, count in sorted(self._counts.items())
        )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:256])
