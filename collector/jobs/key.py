"""The name of a job among all users' jobs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_UID: Final = re.compile(r"[0-9]{1,10}")


class JobKey(NamedTuple):
    """A job's name is unique for its owner only: two users may both call their job `test`."""

    owner: int
    job_id: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.job_id}"

    @classmethod
    def parse(cls, text: str) -> JobKey | None:
        """The key that `text` is, as in `1000:train`. None where it is a job's name alone. A job whose own name has
        this form is found by its key alone, so that no job can pass for another user's."""
        owner, separator, name = text.partition(":")
        return cls(int(owner), name) if separator and name and _UID.fullmatch(owner) else None
