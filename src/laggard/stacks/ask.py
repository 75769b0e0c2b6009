"""An ask for stacks: a small file that tells ranks of this node to sample themselves. Standard library only.

It stands in a folder that only who may ask can write: root's, or the user's own. A rank looks at the folder's owner
and mode, and at nothing else, before it believes an ask; and it answers at most one in MIN_SECONDS_BETWEEN, so that who
asks again and again costs it no more than who asks now and then.
"""

from __future__ import annotations

import contextlib
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


def write_ask(folder: str, ask: Ask) -> None:
    """Puts the ask into the folder, in the place of an earlier one. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    path = os.path.join(folder, FILE)
    hidden = f"{path}.{os.urandom(4).hex()}.new"
    value = {KEY: 1, **ask._asdict(), "ranks": None if ask.ranks is None else sorted(ask.ranks)}
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(json.dumps(value))
            os.fchmod(fd, 0o644)  # ranks are other users', whatever the umask
        os.rename(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise


def read_ask(folder: str, trusted: frozenset[int]) -> Ask | None:
    """The ask in the folder; None where there is none, or where somebody else than the users `trusted` could have
    written it."""
    try:
        about = os.lstat(folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid not in trusted or about.st_mode & stat.S_IWOTH:
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
