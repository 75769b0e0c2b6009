"""The end of a rank, from what the kernel reported, what the process noted itself, and the last that its file tells."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from laggard.agent.ranks.exit_watch import WatchedExit
from laggard.model import RankEnd

_KERNEL_SECONDS: Final = 0.05
"""The delay with which the kernel's report of an end may come. Our own choice: the watching thread waits for its
turn."""
_MAX_CHARACTERS: Final = 64
_OF_LAUNCHERS: Final = ("SIGKILL", "SIGTERM")
"""The signals by which launchers end what runs still."""


class LastMoment(NamedTuple):
    """The last sign of life in the rank file: the writer ended at `at_seconds` (Unix time) or at most
    `uncertain_seconds` before. `unix_minus_clock` converts the file's clock to Unix time; `now_seconds` is now."""

    at_seconds: float
    uncertain_seconds: float
    unix_minus_clock: float
    now_seconds: float


class _Noted(NamedTuple):
    """The notes of the process itself, as far as they are sane: any user may have written it."""

    exit_code: int | None = None
    at_seconds: float | None = None
    exception: str = ""
    others_failed: bool = False


def rank_end(noted: Any, watched: WatchedExit | None, last: LastMoment) -> RankEnd:
    """`noted`: the fact ENDING, None where there is none. What the kernel reported comes first; the moment is the
    exception's where there was one, because the process takes a while to end after it."""
    own = _noted(noted, last)
    status = watched.status if watched and not _was_ended_after(own, watched) else None
    if own.at_seconds is not None:
        at, uncertain = own.at_seconds, 0.0
    elif watched:
        at, uncertain = watched.monotonic_seconds + last.unix_minus_clock, _KERNEL_SECONDS
    else:
        at, uncertain = last.at_seconds, last.uncertain_seconds
    return RankEnd(
        at_seconds=at,
        uncertain_seconds=uncertain,
        exit_code=status.code if status else own.exit_code,
        signal=status.signal if status else "",
        exception=own.exception,
        others_failed=own.others_failed,
        cause=watched.word.cause if watched and watched.word else "",
        kernel=watched.word.text if watched and watched.word else "",
    )


def _was_ended_after(own: _Noted, watched: WatchedExit) -> bool:
    """Whether the process had noted its end before a launcher killed it, as Ray does: the first is what ended it."""
    status = watched.status
    return own.at_seconds is not None and status is not None and status.signal in _OF_LAUNCHERS and not watched.word


def is_failure(end: RankEnd) -> bool:
    """Whether the process ended in another way than with status 0, as far as is known."""
    return bool(end.exit_code or end.signal or end.exception)


def is_harmless(end: RankEnd, noted: Any) -> bool:
    """Whether a rank that had left torch.distributed in order ended as launchers end it, as Ray does: killed, or with a
    status of the launcher's. `noted`: the fact ENDING, which an exception or sys.exit() leaves."""
    return noted is None and not end.exception and end.signal in ("", *_OF_LAUNCHERS) and not end.cause


def _noted(noted: Any, last: LastMoment) -> _Noted:
    if not isinstance(noted, dict):
        return _Noted()
    code, at, name = noted.get("exit_code"), noted.get("at_seconds"), noted.get("exception")
    unix = at + last.unix_minus_clock if isinstance(at, (int, float)) else None
    return _Noted(
        code if type(code) is int and 0 <= code <= 255 else None,
        unix if unix is not None and 0.0 <= unix <= last.now_seconds else None,
        name[:_MAX_CHARACTERS] if isinstance(name, str) else "",
        noted.get("others_failed") is True,
    )
