"""Waiting for what comes in its own time."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 300.0


def wait_for(what: Callable[[], Any], otherwise: Callable[[], object] = str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits until `what` returns something, and returns that. `otherwise` says what there is instead."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, otherwise() or what
        time.sleep(0.05)
    return found
