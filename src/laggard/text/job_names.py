"""A job as people know it: by its script and when it began, where a program made up its name."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

from laggard.model import Location
from laggard.text.users import user_text
from laggard.text.words import printable_line

MAX_CHARACTERS: Final = 300
"""The longest line about one job."""

_NUMBER: Final = re.compile(  # torchrun's UUIDs, hashes, and the name that laggard makes of a rendezvous address
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9a-f]{16,}|job-[0-9a-f]{12}"
)


def is_numbered(job_id: str) -> bool:
    """Whether a program made up the job's name: people know the job by its script."""
    return _NUMBER.fullmatch(job_id) is not None


def recorded_text(job_id: str | None, owner: int | None, script: str | None, started_at: float | None) -> str | None:
    """Names the job of a recording as far as that does: `train.py, started 2026-11-25 07:24 UTC`; None where it says
    nothing."""
    name = script if script and (job_id is None or is_numbered(job_id)) else job_id or script
    if not name:
        return None
    user = f" of {user_text(owner)}" if owner is not None else ""
    started = f", started {minute_text(started_at)}" if started_at else ""
    return printable_line(f"{name}{user}{started}", MAX_CHARACTERS)


def ended_job_prefix(location: Location) -> str:
    """`Job nightly of user ann, ended: ` before the answer on a job that has ended, which a reader could take for one
    that runs; empty where it has not, or where nobody knows whose it was."""
    if location.owner is None or not any(note.kind == "ended" for note in location.notes):
        return ""
    return f"Job {printable_line(f'{location.job_id} of {user_text(location.owner)}', MAX_CHARACTERS)}, ended: "


def minute_text(seconds: float) -> str:
    """`2026-11-25 07:24 UTC`. `seconds`: Unix time."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
