"""An ask for stacks: a small file that tells ranks of this node to sample themselves. Standard library only.

It stands in a folder that only who may ask can write: root's, or the user's own. A rank looks at the folder's owner
and mode, and at nothing else, before it believes an ask; and it answers at most one in MIN_SECONDS_BETWEEN, so that who
asks again and again costs it no more than who asks now and then.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from typing import Any, Final, NamedTuple

from laggard.stacks.sampled import SampledError, read_small_file

FOLDER: Final = ".ask"
FILE: Final = "stacks.json"
KEY: Final = "laggard_ask"
MAX_BYTES: Final = 16 * 1024
MAX_RANKS: Final = 1024
"""The most ranks of one ask; None there means every rank of the job."""

SAMPLES: Final = 200
SECONDS: Final = 10.0
MAX_SAMPLES: Final = 1000
MAX_SECONDS: Final = 60.0
MIN_SECONDS_BETWEEN: Final = 10.0
"""The least time from the end of one answer of a rank to the beginning of its next."""

VALID_SECONDS: Final = 30.0
"""The time after which an ask that nobody took up is void."""

_ID = re.compile(r"[0-9a-f]{16}")


class Ask(NamedTuple):
    """The ranks of a user's job that are asked, and for how much. `ranks` None: all of the job. `until`: Unix
    time after which nobody begins any more."""

    ident: str
    owner: int
    job_id: str
    ranks: frozenset[int] | None
    samples: int
    seconds: float
    until: float

    def is_for(self, owner: int, job_id: str, rank: int, now: float) -> bool:
        addressed = self.owner == owner and self.job_id == job_id and (self.ranks is None or rank in self.ranks)
        return addressed and now <= self.until <= now + 2 * VALID_SECONDS


def new_ask(
    owner: int, job_id: str, ranks: frozenset[int] | None, samples: int = SAMPLES, seconds: float = SECONDS
) -> Ask:
    return Ask(os.urandom(8).hex(), owner, job_id, ranks, samples, seconds, time.time() + VALID_SECONDS)


def write_ask(folder: str, ask: Ask, trusted: frozenset[int] | None = None) -> None:
    """Puts the ask into the folder, which is made where it is missing, in the place of an earlier one. `trusted`: whose
    folder the ranks believe; None: this user's own ranks, theirs and root's. Raises OSError, also where they would not
    believe this one."""
    directory = _open_folder(folder, trusted or frozenset({0, os.geteuid()}))
    try:
        _put(
            directory, json.dumps({KEY: 1, **ask._asdict(), "ranks": None if ask.ranks is None else sorted(ask.ranks)})
        )
    finally:
        os.close(directory)


def _open_folder(folder: str, trusted: frozenset[int]) -> int:
    """Users may write where the folder stands: no link is followed, and what another one has put there is no folder.
    Root puts that aside."""
    if os.geteuid() == 0 and os.path.lexists(folder) and not is_believed(os.lstat(folder), trusted):
        os.rename(folder, f"{folder}-of-another-{os.urandom(4).hex()}")
    made = False
    if os.geteuid() in trusted:  # one that this user made would not be believed else
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            made = True
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not is_believed(os.fstat(directory), trusted):
            raise PermissionError(errno.EPERM, "it is another user's, or everybody can write in it")
        if made:
            os.fchmod(directory, 0o755)  # ranks are other users', whatever the umask
    except BaseException:
        os.close(directory)
        raise
    return directory


def _put(directory: int, text: str) -> None:
    hidden = f"{FILE}.{os.urandom(4).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(hidden, flags, 0o644, dir_fd=directory)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(text)
            os.fchmod(fd, 0o644)
        os.rename(hidden, FILE, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden, dir_fd=directory)
        raise


def ask_folders(rank_directory: str, own: str) -> tuple[str, ...]:
    """The folders in which an ask may stand: the node's, and the user's own."""
    return tuple(os.path.join(folder, FOLDER) for folder in dict.fromkeys((rank_directory, own)))


def trusted_users(rank_directory: str, *others: int) -> frozenset[int]:
    """The users whose asks are believed: root's, the rank directory's owner's, and `others`': a rank's own user."""
    users = {0, *others}
    with contextlib.suppress(OSError):
        users.add(os.stat(rank_directory).st_uid)
    return frozenset(users)


def is_believed(about: os.stat_result, trusted: frozenset[int]) -> bool:
    """Whether only users `trusted`, and whom they let, can write in the folder."""
    return stat.S_ISDIR(about.st_mode) and about.st_uid in trusted and not about.st_mode & stat.S_IWOTH


def read_ask(folder: str, trusted: frozenset[int]) -> Ask | None:
    """The ask in the folder; None where there is none, or where somebody else than the users `trusted` could have
    written it."""
    try:
        if not is_believed(os.lstat(folder), trusted):
            return None
        return _ask(json.loads(read_small_file(os.path.join(folder, FILE), MAX_BYTES)))
    except (OSError, SampledError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _ask(value: dict[str, Any]) -> Ask:
    ident, owner, job_id, ranks = (value[name] for name in ("ident", "owner", "job_id", "ranks"))
    samples, seconds, until = (value[name] for name in ("samples", "seconds", "until"))
    numbers = (owner, samples, *(ranks or ()))
    if value[KEY] != 1 or not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise ValueError
    if not _ID.fullmatch(ident) or not isinstance(job_id, str) or len(numbers) > MAX_RANKS + 2:
        raise ValueError
    return Ask(
        ident,
        owner,
        job_id,
        None if ranks is None else frozenset(ranks),
        max(1, min(samples, MAX_SAMPLES)),
        max(0.1, min(float(seconds), MAX_SECONDS)),
        float(until),
    )
