"""The end of the training process, as far as Python sees it: by which exception, or with which status it leaves.

A process that is killed notes nothing here; its agent learns that from the kernel.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from laggard.rankfile.fact_names import ENDING
from laggard.trainer_hooks.record.facts import FACTS

_OTHERS_FAILED: Final = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket (timeout|closed)|gloo/transport|nccl error|"
    r"remote process exited|unhandled system error|communicator was aborted|collective operation timeout|"
    r"wait timeout|timed out (waiting|after)",
    re.IGNORECASE,
)
_NETWORK_TYPES: Final = ("DistBackendError", "DistNetworkError", "DistStoreError", "BrokenPipeError", "TimeoutError")
_MAX_CHARACTERS: Final = 4096
_ON_FAILURE: Final[list[Callable[[], None]]] = []
_ON_ERROR: Final[list[Callable[[BaseException], None]]] = []
_ON_DEPARTURE: Final[list[Callable[[], None]]] = []


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


def on_failure(call: Callable[[], None]) -> None:
    """`call` is called once, as soon as it is noted that the process ends with another status than 0, or that the
    training in it ended by an exception."""
    _ON_FAILURE.append(call)


def on_error(call: Callable[[BaseException], None]) -> None:
    """`call` gets the exception that ends the process or the training in it, before whom on_failure() added."""
    _ON_ERROR.append(call)


def note_departure() -> None:
    """Notes that the process leaves torch.distributed, unless an exception is on its way out."""
    if FACTS.get(ENDING) is None and sys.exc_info()[1] is None:
        for call in _ON_DEPARTURE:
            call()


def on_departure(call: Callable[[], None]) -> None:
    """`call` is called when the process leaves torch.distributed in order: however it ends, it harms nobody then."""
    _ON_DEPARTURE.append(call)


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
    if isinstance(error, SystemExit):
        return {}
    name = type(error).__name__
    others_failed = name in _NETWORK_TYPES or _OTHERS_FAILED.search(str(error)[:_MAX_CHARACTERS]) is not None
    return {"exception": name[:64], "others_failed": others_failed}
