"""To which account a user id belongs: /etc/subuid gives accounts ranges of further ids, which are theirs as well. So
who has 65,536 of them counts once where users share something. Standard library only."""

from __future__ import annotations

import os
import pwd
from typing import Final, NamedTuple

SUB_UIDS: Final = "/etc/subuid"
_MAX_BYTES: Final = 1 << 20


class _Range(NamedTuple):
    first: int
    size: int
    account: int


class Accounts:
    """Root's file, read again where it has changed. Without it each id is an account of its own."""

    def __init__(self, path: str = SUB_UIDS) -> None:
        self._path = path
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
            self._read, self._ranges = now, _ranges(self._path)
        return self._ranges


def _ranges(path: str) -> tuple[_Range, ...]:
    """The lines `NAME|UID:FIRST:COUNT` (subuid(5)) that can be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:
        name, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        account = _account(name)
        if account is not None and first.isdecimal() and count.isdecimal() and int(first) > 0:
            found.append(_Range(int(first), int(count), account))
    return tuple(found)


def _account(name: str) -> int | None:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


ACCOUNTS: Final = Accounts()
"""Those of this machine."""
