"""The demo's wall time, from the command to its exit, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
import time

from common.figures import quartiles, show


def main() -> int:
    times, right = [], True
    for stage in (0, 1, 2, 3):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "laggard", "demo", "--zero", str(stage)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        times.append(time.monotonic() - began)
        right = right and done.returncode == 0
    good = show("laggard demo, ZeRO 0 to 3 once each", [quartiles("start to exit", times, "s", 60.0)])
    if not right:
        print("a demo did not name what it had slowed")
    return 0 if good and right else 1


if __name__ == "__main__":
    raise SystemExit(main())
