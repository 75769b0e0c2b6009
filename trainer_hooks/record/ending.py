"""The end of the training process, as far as Python sees it: by which exception, or with which status it leaves.

A process that is killed notes nothing here; its agent learns that from the kernel.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from laggard.rankfile.fact_names import DIGEST_SKIPPED, DIGESTS, ENDING
from laggard.rankfile.layout import FACTS_LIMIT


class Facts:
    """Values by name, each of JSON's kinds. Set from any thread; the heartbeat writes them when they have changed."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._encoded: dict[str, Any] | None = None  # the values of the last changed_json()

    def set(self, name: str, value: Any) -> None:
        """A later value replaces an earlier one of the same name; None removes it."""
        if self._values.get(name) == value:
            return
        values = {**self._values, name: value}
        self._values = {key: each for key, each in values.items() if each is not None}  # replaced as a whole

    def get(self, name: str) -> Any:
        """The value of that name; None where none was set."""
        return self._values.get(name)

    def changed_json(self) -> bytes | None:
        """Returns the JSON of all values where one was set since the last call; None where none was.

        What is too large, or no JSON, is left out, the largest first, and its name stands in `left_out`.
        """
        values = self._values
        if values is self._encoded:
            return None
        self._encoded = values
        left_out: list[str] = []
        while True:
            shown = {**values, "left_out": sorted(left_out)} if left_out else values
            text = json.dumps(shown, default=_placeholder, separators=(",", ":")).encode()
            if len(text) <= FACTS_LIMIT or not values:
                break
            largest = max(values, key=lambda name: len(json.dumps(values[name], default=_placeholder)))
            left_out.append(largest[:64])
            values = {name: value for name, value in values.items() if name != largest}
        return text if len(text) <= FACTS_LIMIT else None


FACTS: Final = Facts()
"""The facts that this process reports of itself in its rank file: `FACTS.set(name, value)`."""


def _placeholder(value: object) -> str:
    return f"<{type(value).__name__}>"


_OTHERS_FAILED: Final = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket (timeout|closed)|gloo/transport|nccl error|"
    r"remote process exited|unhandled system error|communicator was aborted|collective operation timeout|"
    r"wait timeout|timed out (waiting|after)",
    re.IGNORECASE,
)
_NETWORK_TYPES: Final = ("DistBackendError", "DistNetworkError", "DistStoreError", "BrokenPipeError", "TimeoutError")
_MAX_CHARACTERS: Final = 4096
_MAX_WRAPPED: Final = 16

_ON_ERROR: Final[list[Callable[[BaseException], None]]] = []
on_error: Final = _ON_ERROR.append
"""Adds who gets the exception that ends the process or the training in it, before whom on_failure() added."""

_ON_FAILURE: Final[list[Callable[[], None]]] = []
on_failure: Final = _ON_FAILURE.append
"""Adds who is called once, as soon as it is noted that the process ends with another status than 0, or that the
training in it ended by an exception."""

_ON_DEPARTURE: Final[list[Callable[[], None]]] = []
on_departure: Final = _ON_DEPARTURE.append
"""Adds who is called when the process leaves torch.distributed in order: however it ends, it harms nobody then."""


def note_ending(error: BaseException) -> None:
    """Notes that `error` ends the process. Of the exception only the type is kept, and whether it is one that other
    ranks' ends cause: its text may hold what is nobody else's business. Never raises."""
    try:
        status = _exit_status(error)
        if status:
            _note(error, status)
    except Exception:
        return  # whatever the user's exception does when it is looked at


def note_caught(error: BaseException) -> None:
    """Notes that `error` ended the training in a process that runs on: a framework caught it, and will kill the
    process. It takes sys.exit(0) in the training's thread for a failure as well. Never raises."""
    try:
        _note(error, _exit_status(error) or 1)
    except Exception:
        return


def _note(error: BaseException, status: int) -> None:
    if FACTS.get(ENDING) is not None:
        return
    about = _exception(error) if _exit_status(error) else {"exception": "SystemExit"}
    FACTS.set(ENDING, {"exit_code": status, "at_seconds": time.perf_counter(), **about})
    for take in _ON_ERROR:
        take(error)
    for call in _ON_FAILURE:
        call()


def note_departure() -> None:
    """Notes that the process leaves torch.distributed, unless an exception is on its way out."""
    if FACTS.get(ENDING) is None and sys.exc_info()[1] is None:
        for call in _ON_DEPARTURE:
            call()


def forget_calls() -> None:
    """This is a forked child: whoever asked to be called speaks for its parent."""
    _ON_FAILURE.clear()
    _ON_ERROR.clear()
    _ON_DEPARTURE.clear()


def watch_exceptions() -> None:
    """Has note_ending() get the exception that nobody catches, before whoever gets it now."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_ending(error)
        before(kind, error, trace)

    sys.excepthook = excepthook


def note_present_ending() -> None:
    """Notes the exception that is on its way out just now, if there is one. What ends a process of multiprocessing is
    caught by that, so that no excepthook gets it; torch's spawn catches it before, and leaves by sys.exit(1)."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and _exit_status(error) and isinstance(error.__context__, Exception):
        error = error.__context__
    if error is not None:
        note_ending(error)


def _exit_status(error: BaseException) -> int:
    """The status with which Python leaves for this exception."""
    if not isinstance(error, SystemExit):
        return 1
    code = error.code
    return code & 0xFF if isinstance(code, int) else 0 if code is None else 1


def _exception(error: BaseException) -> dict[str, Any]:
    others_failed = any(map(_comes_of_others, (error, _first_of(error))))
    if isinstance(error, SystemExit):
        return {"others_failed": True} if others_failed else {}
    return {"exception": type(error).__name__[:64], "others_failed": others_failed}


def _first_of(error: BaseException) -> BaseException:
    """The one that came first: a script, or a framework, may wrap whatever ends its training in one of its own."""
    for _ in range(_MAX_WRAPPED):
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            break
        error = before
    return error


def _comes_of_others(error: BaseException) -> bool:
    text = str(error)[:_MAX_CHARACTERS]
    return type(error).__name__ in _NETWORK_TYPES or _OTHERS_FAILED.search(text) is not None


_LAST: Final = 4
_SPARSE: Final = (16, 256, 4096)
_MAX_WAITING: Final = 4096
"""The most digests that wait for the recording, whose thread comes round ten times a second."""


class DigestLog:
    """Digests in the order of their steps. add() and skip() are for the training thread, take() for one other."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._first: list[Any] | None = None
        self._last: deque[list[Any]] = deque(maxlen=_LAST)
        self._sparse: dict[int, list[Any]] = {}
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)

    def add(self, step: int, value: int, every: int) -> None:
        """Adds the digest after `step`."""
        pair = [step, f"{value % (1 << 64):016x}"]
        self._first = self._first or pair
        self._last.append(pair)
        self._sparse.update({stride: pair for stride in _SPARSE if step // every % stride == 0})
        kept = sorted({each[0]: each for each in (*self._sparse.values(), *self._last)}.values())
        self._facts.set(DIGESTS, {"every": every, "first": self._first, "last": kept})
        self._waiting.append({"step": step, "value": pair[1], "every": every})

    def skip(self, reason: str) -> None:
        """No digests are computed, for this reason (a key of DIGEST_SKIPPED_REASONS)."""
        self._facts.set(DIGEST_SKIPPED, reason)
        self._waiting.append({"skipped": reason})

    def take(self) -> list[dict[str, Any]]:
        """What came since the last call, as values of the recording's lines `digest`."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


DIGEST_LOG: Final = DigestLog(FACTS)
"""The digests of this process."""
