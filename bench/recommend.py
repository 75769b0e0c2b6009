"""`laggard recommend` on a simulated recording of 64 ranks, from start to exit, beside Python with numpy alone."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.figures import interleaved, quartiles, show

BUDGET_SECONDS = 0.5
CASE = ("--layout", "dp=64", "--fault", "slow_gpu,size=0.1", "--form", "host", "--seed", "7")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs_of_runs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        simulate = Path(__file__).parent / "simulate.py"
        subprocess.run([sys.executable, str(simulate), folder, *CASE], check=True, stdout=subprocess.DEVNULL)
        pairs = interleaved(
            pairs_of_runs,
            lambda: seconds("-c", "import numpy"),
            lambda: seconds("-m", "laggard", "recommend", f"{folder}/trace"),
        )
    figures = (
        quartiles("Python and numpy", [bare for bare, _ in pairs], "s"),
        quartiles("laggard recommend", [other for _, other in pairs], "s", BUDGET_SECONDS),
    )
    return int(not show("The recommendation from a recording of 64 ranks", figures))


def seconds(*words: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
