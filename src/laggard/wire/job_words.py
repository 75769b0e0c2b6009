"""The end of a rank and the name of a job in words."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

from laggard.kit.users import user_text
from laggard.kit.words import printable_line, seconds_text
from laggard.model import Location, RankEnd

_CAUSES = {
    "out_of_memory": "its host or cgroup was out of memory (OOM kill)",
    "gpu_error": "its GPU reported an error (Xid)",
    "memory_error": "the hardware found damaged memory",
    "segfault": "it accessed memory that is not its own",
}
"""The meaning of the kernel's word; the agent's kernel_word.py finds it."""


_GONE = "its process is gone: killed, or left by os._exit"


def left_early(end: RankEnd | None) -> bool:
    """Whether the process ended well, with status 0: then it is told of because others could not go on."""
    return end is not None and end.exit_code == 0 and not (end.signal or end.exception or end.cause)


def end_text(end: RankEnd | None) -> str:
    """`killed by SIGKILL, its host or cgroup was out of memory (OOM kill)`, `exit status 1 after
    ValueError`. Says so where nothing is known but that the process is gone."""
    if end is None:
        return _GONE
    how = _GONE
    if end.signal:
        how = f"killed by {end.signal}"
    elif end.exit_code:
        how = f"exit status {end.exit_code}" + (f" after {end.exception}" if end.exception else "")
    elif left_early(end):
        how = "exit status 0"
    elif end.exception:
        how = f"ended by {end.exception}"
    return how + (f", {_CAUSES.get(end.cause, end.cause)}" if end.cause else "")


def time_text(end: RankEnd) -> str:
    """`18:20:31.42 UTC`, and by how much it may have been earlier."""
    moment = datetime.fromtimestamp(end.at_seconds, timezone.utc)
    text = f"{moment:%H:%M:%S}.{moment.microsecond // 10000:02d} UTC"
    return text + (f", or up to {seconds_text(end.uncertain_seconds)} before" if end.uncertain_seconds else "")


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
