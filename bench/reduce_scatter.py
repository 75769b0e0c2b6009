"""ZeRO stages 1 and 2 as shipped beside the true reduce-scatter: bytes on the wire and time, real DeepSpeed on gloo in
network namespaces, a node a rank. Needs root and iproute2."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.refused import need

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.namespaces import Namespaces

JOB = Path(__file__).parent / "trainings" / "reduce_scatter_job.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"])
    options = parser.parse_args()
    need("ip", "tc", root=True)
    equal = True
    print("| stage | link | sent by a rank, as shipped | scattered | step as shipped | scattered | ratio of times |")
    print("|---|---|---|---|---|---|---|")
    for stage in options.stages:
        for rate in options.rates:
            ranks = run(options.ranks, rate, stage, options.steps)
            equal &= all(rank["equal"] for rank in ranks)
            print(row(stage, rate, ranks), flush=True)
    print("parameters are equal bit by bit" if equal else "PARAMETERS DIFFER")
    return int(not equal)


def run(ranks: int, rate: str, stage: int, steps: int) -> list[dict[str, Any]]:
    with Namespaces(ranks, rate) as nodes, tempfile.TemporaryDirectory() as folder:
        common = {
            "MASTER_ADDR": nodes.address(0),
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0",
            "DS_ACCELERATOR": "cpu",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        started = [
            nodes.start(
                rank,
                [sys.executable, str(JOB), str(stage), str(steps)],
                {**common, "RANK": str(rank), "LAGGARD_RANK_DIR": f"{folder}/{rank}"},
                stdout=subprocess.PIPE,
                stderr=(Path(folder) / f"{rank}.err").open("w"),
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
        for rank, process in enumerate(started):
            if process.returncode:
                raise SystemExit((Path(folder) / f"{rank}.err").read_text()[-2000:])
        return [json.loads(output.splitlines()[-1]) for output in outputs]


def row(stage: int, rate: str, ranks: list[dict[str, Any]]) -> str:
    """Bytes: the mean over ranks, the median over steps. Times: of the slowest rank; median and quartiles of ratios of
    neighbouring steps."""
    sent = [
        statistics.median(statistics.mean(each[1] for each in step) for step in zip(*taken, strict=True))
        for taken in ([rank[name] for rank in ranks] for name in ("shipped", "scattered"))
    ]
    times = [
        [max(each[0] for each in step) for step in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ("shipped", "scattered")
    ]
    low, middle, high = statistics.quantiles(
        [shipped / scattered for shipped, scattered in zip(*times, strict=True)], n=4
    )
    shown = [f"{value / 1e6:.2f} MB" for value in sent] + [f"{statistics.median(each):.3f} s" for each in times]
    return f"| {stage} | {rate} | {' | '.join(shown)} | {middle:.2f} ({low:.2f} to {high:.2f}) |"


if __name__ == "__main__":
    raise SystemExit(main())
