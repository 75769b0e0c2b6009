"""A clock for each machine of the site, which can be set: CLOCK_REALTIME, in the daemons of that machine alone, by a
preloaded library. CLOCK_MONOTONIC goes on, as when an administrator or NTP sets a clock. Time namespaces shift only the
latter. Needs a C compiler."""

import mmap
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("set_clock.c")


def built(folder: Path) -> Path:
    """The library to preload, built into `folder`."""
    library = folder / "set_clock.so"
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library


class Clock:
    """`environment` is for the programs that go by this clock. `ahead`: by how many seconds it is ahead of the true
    time; where negative, behind it. The programs see a change at once."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._seconds = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(built(path.parent)), "SET_CLOCK_FILE": str(path)}
        self.ahead = 0

    def set_by(self, ahead: int) -> None:
        self.ahead = ahead
        self._seconds[:] = struct.pack("d", ahead)
