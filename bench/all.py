"""Runs every benchmark, or those named, one after the other: the figures of docs/measurements.md. Exit status 1 where
one is over its budget."""

from __future__ import annotations

import sys
from pathlib import Path

from common.programs import run
from common.refused import known

BENCHES = (
    *("hook", "hook_peers", "beat", "healthcheck", "prolog", "agent", "locate"),
    *("diagnose", "recommend", "ring", "page", "stacks"),
)


def main() -> int:
    here = Path(__file__).parent
    names = sys.argv[1:] or BENCHES
    known(names, BENCHES, "benchmark")
    status = [run([sys.executable, str(here / f"{name}.py")]).returncode for name in names]
    return int(any(status))


if __name__ == "__main__":
    raise SystemExit(main())
