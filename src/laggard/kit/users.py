"""Users of this machine: their names, and the ids that a user namespace may have."""

from __future__ import annotations

import os
import pwd
from typing import Final, NamedTuple


def by_uid(job: str | None) -> str | None:
    """The job's name with the uid in place of a user's name before it, as the collector knows it."""
    user, separator, name = (job or "").partition(":")
    try:
        return f"{pwd.getpwnam(user).pw_uid}:{name}" if separator else job
    except (KeyError, ValueError):  # a uid, or no user of this machine: part of the job's own name
        return job


def user_text(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):  # not a user of this machine
        return f"user {uid}"


# To which account a user id belongs: /etc/subuid gives accounts ranges of further ids, which are theirs as well. So who
# has 65,536 of them counts once where users share something. Standard library only.

SUB_UIDS: Final = "/etc/subuid"
PASSWD: Final = "/etc/passwd"
_MAX_BYTES: Final = 1 << 20


class _Range(NamedTuple):
    first: int
    size: int
    account: int


class Accounts:
    """Root's file, read again where it has changed. Without it each id is an account of its own. Names are looked up in
    /etc/passwd alone: a directory service that does not answer would make a gate wait. A range of a name that is not
    there is an account by itself."""

    def __init__(self, path: str = SUB_UIDS, passwd: str = PASSWD) -> None:
        self._path, self._passwd = path, passwd
        self._read: tuple[int, int, int] | None = None
        self._ranges: tuple[_Range, ...] = ()

    def account_of(self, uid: int) -> int:
        """The account whose id `uid` is, or in whose range it lies."""
        if not uid:
            return uid
        for each in self._current():
            if each.first <= uid < each.first + each.size:
                return each.account
        return uid

    def _current(self) -> tuple[_Range, ...]:
        try:
            status = os.stat(self._path)
        except OSError:
            self._read, self._ranges = None, ()
            return ()
        now = status.st_ino, status.st_size, status.st_mtime_ns
        if now != self._read:
            self._read, self._ranges = now, _ranges(self._path, self._passwd)
        return self._ranges


def _ranges(path: str, passwd: str) -> tuple[_Range, ...]:
    """The lines `NAME|UID:FIRST:COUNT` (subuid(5)) that can be read."""
    users = {fields[0]: fields[2] for fields in _rows(passwd) if len(fields) > 2}
    found = []
    for name, first, size in (fields for fields in _rows(path) if len(fields) == 3):
        uid = users.get(name, name)
        if first.isdecimal() and size.isdecimal() and int(first) > 0:
            found.append(_Range(int(first), int(size), int(uid) if uid.isdecimal() else int(first)))
    return tuple(found)


def _rows(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.split(":") for line in file.read(_MAX_BYTES).splitlines()]
    except OSError:
        return []


ACCOUNTS: Final = Accounts()
"""Those of this machine."""
