"""Runs every benchmark, or those named, one after the other: the figures of docs/development/measurements.md. Exit
status 1 where one is over its budget."""

import subprocess
import sys
from pathlib import Path

from common.refused import known

BENCHES = (
    *("hook", "hook_peers", "beat", "healthcheck", "prolog", "agent", "locate"),
    *("diagnose", "recommend", "ring", "page", "stacks"),
)


def main() -> int:
    here = Path(__file__).parent
    names = sys.argv[1:] or BENCHES
    known(names, BENCHES, "benchmark")
    return int(any([waited_for(here / f"{name}.py") for name in names]))


def waited_for(script: Path) -> int:
    """Its exit status. Ctrl-C, which interrupts it too, lets it end what it has started: subprocess.run() would kill it
    a quarter of a second later."""
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        return process.wait()
    except BaseException:
        process.wait()
        raise


if __name__ == "__main__":
    raise SystemExit(main())
