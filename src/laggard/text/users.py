"""Users' names and numbers, by the user database of this machine."""

from __future__ import annotations

import pwd


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
