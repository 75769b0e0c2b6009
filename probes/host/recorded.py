"""Answers of a recorded machine that were not files."""

from __future__ import annotations

import errno
import os
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
from laggard.probes.host.recorded_tree import RecordedTree, open_regular

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
