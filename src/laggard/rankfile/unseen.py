"""The mark of a process that runs under laggard and is not seen as a rank: a small file beside the rank files, and in
the folder of a recording. Standard library only.

It is written whole under another name and renamed. A reader trusts it as little as a rank file: what it says is
bounded, and who wrote it is told by the file's owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from laggard.kit.processes import GONE, state_of
from laggard.rankfile.reader import RankFileError

MARK_SUFFIX: Final = ".unseen"
MARK_KEY: Final = "laggard_unseen"
STARTING, UNSEEN = "starting", "unseen"
"""The states of a process with a mark: it has torch and may become a rank; or it trained, and nothing of it was
recorded."""

MAX_BYTES: Final = 4096
MAX_MARKS: Final = 64
"""The most marks of one user on a node; a process beyond leaves none."""

MAX_TEXT: Final = 256
_MAX_NUMBER: Final = 1 << 31
_EXPIRE_SECONDS: Final = 600.0


class UnseenMark(NamedTuple):
    """The content of a mark. `at`: Unix time. `process`: as processes.identity.own_identity()."""

    kind: str
    job_id: str
    rank: int
    world_size: int
    node: str
    script: str
    why: str
    at: float
    process: Mapping[str, Any]


def write_mark(directory: str, mark: UnseenMark, name: str) -> str:
    """Writes the mark, in the place of an earlier one of that name, and returns its path. Raises OSError."""
    path = os.path.join(directory, name + MARK_SUFFIX)
    hidden = f"{path}.{os.urandom(4).hex()}.new"
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(json.dumps({MARK_KEY: 1, **mark._asdict()}) + "\n")
            os.fchmod(fd, 0o644)  # the agent is another user
        os.rename(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise
    return path


def has_room(directory: str) -> bool:
    """Whether there may be one more mark. Removes this user's marks whose processes ended long ago."""
    kept = 0
    for path in Path(directory).glob(f"*{MARK_SUFFIX}"):
        try:
            about = path.lstat()
            old = time.time() - about.st_mtime > _EXPIRE_SECONDS and about.st_uid == os.geteuid()
            if old and state_of(read_mark(str(path)).process) in (GONE, None):
                path.unlink()
                continue
        except (OSError, RankFileError):
            pass
        kept += 1
    return kept < MAX_MARKS


def read_mark(path: str) -> UnseenMark:
    """The mark at `path`. Raises RankFileError that says what is wrong with it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise RankFileError(error.strerror or "cannot be opened") from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise RankFileError("no mark of an unseen process: not a small regular file")
        return _decoded(os.pread(fd, MAX_BYTES, 0))
    except OSError as error:
        raise RankFileError(error.strerror or "cannot be read") from None
    finally:
        os.close(fd)


def _decoded(content: bytes) -> UnseenMark:
    try:
        found = json.loads(content)
        numbers = [found[name] for name in ("rank", "world_size")]
        texts = [found[name] for name in ("job_id", "node", "script", "why")]
        at, process = found["at"], found["process"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RankFileError("no mark of an unseen process: not the JSON expected") from None
    if not (
        found["kind"] in (STARTING, UNSEEN)
        and all(type(each) is int and 0 <= each < _MAX_NUMBER for each in numbers)
        and all(isinstance(each, str) and len(each) <= MAX_TEXT and each.isprintable() for each in texts)
        and isinstance(at, (int, float))
        and 0 <= at < _MAX_NUMBER * 100
        and isinstance(process, dict)
        and found["job_id"]
    ):
        raise RankFileError("no mark of an unseen process: a value is not what it should be")
    return UnseenMark(found["kind"], texts[0], numbers[0], numbers[1], texts[1], texts[2], texts[3], float(at), process)
