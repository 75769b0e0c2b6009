"""A cache of the rank files' contents, shared by the readers that do not need them anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from laggard.wire.ranks import RanksDocument


class RankCache:
    """The ranks as last read. They are read again when somebody asks and they are older than `max_age_seconds`; while
    nobody asks there is no work."""

    def __init__(self, read: Callable[[], RanksDocument], max_age_seconds: float) -> None:
        self._read = read
        self._max_age_seconds = max_age_seconds
        self._lock = threading.Lock()
        self._cached: tuple[float, RanksDocument] | None = None

    def get(self) -> RanksDocument:
        with self._lock:  # a thread that comes while another reads waits, and gets what that one read
            now = time.monotonic()
            if self._cached is None or now - self._cached[0] >= self._max_age_seconds:
                self._cached = (now, self._read())
            return self._cached[1]
