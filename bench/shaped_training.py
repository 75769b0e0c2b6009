"""Starts bench/tuned_training.py with a node a rank, in network namespaces whose links have a rate: what `laggard run`
and `laggard tune` are given as the training's command. Needs root and iproute2.

    laggard run --record DIR python bench/shaped_training.py --ranks 2 --rate 200mbit ds_config.json --width 512
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from namespaces import Namespaces

JOB = Path(__file__).parent / "tuned_training.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="200mbit", help="of each node's link, as tc writes it")
    options, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, _leave)  # a tuner that is ended leaves no namespace behind
    with Namespaces(options.ranks, options.rate) as nodes:
        started: list[subprocess.Popen[str]] = []
        try:
            for rank in range(options.ranks):
                environ = {
                    "MASTER_ADDR": nodes.address(0),
                    "MASTER_PORT": "29500",
                    "WORLD_SIZE": str(options.ranks),
                    "RANK": str(rank),
                    "LOCAL_RANK": "0",
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "OMP_NUM_THREADS": "1",
                }
                started.append(nodes.start(rank, [sys.executable, str(JOB), *words], environ))
            return max(abs(each.wait()) for each in started)
        finally:
            for each in started:
                each.kill()
                each.wait()


def _leave(*_: Any) -> None:
    raise SystemExit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    raise SystemExit(main())
