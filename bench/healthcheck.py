"""How long `laggard healthcheck` takes from start to exit, beside a bare interpreter. `--pairs N`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from figures import interleaved, quartiles, show

BUDGET_SECONDS = 0.2
LAGGARD = Path(sys.executable).parent / "laggard"


def seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21, help="of runs, bare and laggard in turn")
    pairs = interleaved(
        max(2, parser.parse_args().pairs),
        lambda: seconds(sys.executable, "-c", "pass"),
        lambda: seconds(str(LAGGARD), "healthcheck"),
    )
    fits = show(
        "healthcheck, start to exit",
        [
            quartiles("python -c pass", [bare for bare, _ in pairs], "s"),
            quartiles("laggard healthcheck", [checked for _, checked in pairs], "s", BUDGET_SECONDS),
        ],
    )
    return 0 if fits else 1


if __name__ == "__main__":
    raise SystemExit(main())
