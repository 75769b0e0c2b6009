"""The end of a rank's process, how and when, in words. Pure."""

from __future__ import annotations

from datetime import datetime, timezone

from laggard.model import RankEnd
from laggard.text.words import seconds_text

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
