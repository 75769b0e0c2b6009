"""Starts tuned_training.py with a node a rank, in network namespaces whose links have a rate: what `laggard run`
and `laggard tune` are given as the training's command. Needs root and iproute2.

    laggard run --record DIR python bench/trainings/shaped_training.py --ranks 2 --rate 200mbit ds_config.json
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.namespaces import Namespaces

JOB = Path(__file__).parent / "tuned_training.py"
RANK = Path(__file__).parent / "shaped_rank.py"
Start = Callable[[int, Mapping[str, str]], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", default="200mbit", help="of each node's link, as tc writes it")
    parser.add_argument("--warm", metavar="NAME", help="fork the ranks of a server of this name, which has DeepSpeed")
    parser.add_argument("--record", metavar="DIR", help="with --warm: put `laggard run --record DIR` before each rank")
    options, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, _leave)  # a tuner that is ended leaves no namespace behind
    with Namespaces(options.ranks, options.rate) as nodes:
        start = _warm_start(options, nodes, words) if options.warm else _start(nodes, words)
        started: list[Any] = []
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
                started.append(start(rank, environ))
            status = max(abs(each.wait()) for each in started)
            if options.warm:
                _show(started)
            return status
        finally:
            for each in started:
                each.kill()
                each.wait()


def _start(nodes: Namespaces, words: list[str]) -> Start:
    return lambda rank, environ: nodes.start(rank, [sys.executable, str(JOB), *words], environ)


def _warm_start(options: argparse.Namespace, nodes: Namespaces, words: list[str]) -> Start:
    """The ranks are forks of a process that has imported DeepSpeed: only the import, half of a short trial, is not
    their own."""
    warm = server(options.warm)
    hooks = ["-m", "laggard", "run", "--record", options.record] if options.record else []
    return lambda rank, environ: warm.start([*hooks, RANK, nodes.path(rank), JOB, *words], environ)


def server(name: str) -> Any:
    """Returns the server of this name, which ends with the last process that uses it."""
    from support.warm import Warm

    return Warm("deepspeed", "torch._dynamo", shared=name)


def _show(started: list[Any]) -> None:
    for each in started:
        out, errors = each.communicate()
        sys.stdout.write(out)
        sys.stderr.write(errors)


def _leave(*_: Any) -> None:
    raise SystemExit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    raise SystemExit(main())
