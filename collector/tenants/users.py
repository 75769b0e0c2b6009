"""The user that a name stands for, by the collector's settings and the user database of its machine."""

from __future__ import annotations

import contextlib
import grp
import math
import os
import pwd
import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

_KEPT_SECONDS: Final = 60.0
_MAX_KEPT: Final = 4096


class User(NamedTuple):
    uid: int
    groups: tuple[str, ...] = ()


class NotLookedUp(Exception):
    """The user database has to be asked first (Users.look_up), which may take long: it can be on the network."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Users:
    """The users by name, for use from threads. What the user database said is kept for a minute."""

    def __init__(self, uids: Mapping[str, int], domain: str) -> None:
        """`uids` go before the user database. Of names that end with @`domain` that is left out."""
        self._uids, self._domain = uids, domain
        self._kept: dict[str, tuple[float, User | None]] = {}
        self._lock = threading.Lock()

    def local(self, name: str) -> str:
        """The name as this machine knows it."""
        return name.removesuffix(f"@{self._domain}") if self._domain else name

    def find(self, name: str) -> User | None:
        """None for a name that is nobody's. Raises NotLookedUp."""
        with self._lock:
            until, found = self._kept.get(name, (-math.inf, None))
        if time.monotonic() >= until:
            raise NotLookedUp(name)
        return found

    def look_up(self, name: str) -> None:
        """Asks the user database, and waits for it."""
        found = self._of_database(name)
        with self._lock:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[name] = time.monotonic() + _KEPT_SECONDS, found

    def _of_database(self, name: str) -> User | None:
        local = self.local(name)
        listed = self._uids.get(name, self._uids.get(local))
        try:
            entry = pwd.getpwnam(local)
        except (KeyError, ValueError, UnicodeError):
            return None if listed is None else User(listed)
        return User(entry.pw_uid if listed is None else listed, _groups(entry))


def _groups(entry: pwd.struct_passwd) -> tuple[str, ...]:
    names = []
    with contextlib.suppress(OSError):
        for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
            with contextlib.suppress(KeyError):  # a group without a name
                names.append(grp.getgrgid(gid).gr_name)
    return tuple(names)
