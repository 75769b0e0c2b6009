"""The process that disturbs a rank: `disturb.py KIND FLAG [--core N]` keeps the GPU, or a core, busy while FLAG is set.

It prints READY once it could. It never has more than CHUNKS chunks of about CHUNK_MS launched, so that it ends soon
after the flag is cleared, and never none, so that the GPU always has something of its to take turns with.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from gpu_check.ending import end_with_parent
from gpu_check.jobs.flag import Flag
from gpu_check.jobs.loads import KINDS, find_loads, unit_ms

CHUNK_MS, CHUNKS = 1.0, 2
LOOK_SECONDS = 50e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("flag", type=Path)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    end_with_parent()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    loads = find_loads()
    unit = loads.unit(options.kind)
    count = max(1, round(CHUNK_MS / max(1e-3, unit_ms(loads, unit, warm_up=0.0))))
    flag, launched = Flag(options.flag), deque[Any]()
    print("READY", flush=True)
    while True:
        if not flag.is_set:
            time.sleep(LOOK_SECONDS)
            continue
        for _ in range(count):
            unit()
        launched.append(loads.stamp())
        if len(launched) > CHUNKS:
            loads.wait(launched.popleft())


if __name__ == "__main__":
    main()
