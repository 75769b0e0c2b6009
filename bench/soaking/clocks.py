"""A clock for each machine of the site, which can be set: CLOCK_REALTIME by libfaketime, in the daemons of that machine
alone. CLOCK_MONOTONIC goes on, as when an administrator or NTP sets a clock. Time namespaces shift only the latter."""

from __future__ import annotations

from pathlib import Path

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""None where Debian's package libfaketime is not installed."""
_NOTICED_SECONDS = 1


class Clock:
    """`environment` is for the programs that go by this clock. `ahead`: by how many seconds it is ahead of the true
    time; where negative, behind it. The programs notice within `_NOTICED_SECONDS`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set_by(0)

    @property
    def environment(self) -> dict[str, str]:
        if FAKETIME is None:
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": str(_NOTICED_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set_by(self, ahead: int) -> None:
        self.ahead = ahead
        new = self._path.with_suffix(".new")
        new.write_text(f"{ahead:+d}\n")
        new.replace(self._path)
