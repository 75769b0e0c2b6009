"""A look at the rank files that several readers may share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from laggard.wire import RanksDocument


class Recent:
    """The latest look, taken again when it is older than `interval_seconds` and somebody asks. Nobody asks: no work."""

    def __init__(self, look: Callable[[], RanksDocument], interval_seconds: float) -> None:
        self._look = look
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._taken: tuple[float, RanksDocument] | None = None

    def ranks(self) -> RanksDocument:
        with self._lock:  # who comes while another looks waits for that look
            now = time.monotonic()
            if self._taken is None or now - self._taken[0] >= self._interval_seconds:
                self._taken = (now, self._look())
            return self._taken[1]
