"""An entry to begin with: a rank is slow whose median phase is longer than that of its peers. It finds no other fault.

python laggard_bench/score.py CASES laggard_bench/example_entry.py
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

SLOWER = 1.1
"""By which factor a rank's median has to be longer than the median of all ranks' medians; a guess, tuned to nothing."""


def locate(case: Path) -> dict[str, Any]:
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    node: dict[int, str] = {}
    for file in (case / "recording").glob("rank-*.jsonl"):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if line.get("kind") == "rank":
                node[line["rank"]] = line["node"]
            elif line.get("kind") == "span":
                seconds[line["name"]][line["rank"]].append(line["end"] - line["start"])
    slowest, by = -1, SLOWER
    for of_rank in seconds.values():
        medians = {rank: median(each) for rank, each in of_rank.items()}
        rank = max(medians, key=medians.__getitem__)
        usual = median(medians.values())
        if usual > 0 and medians[rank] / usual > by:
            slowest, by = rank, medians[rank] / usual
    if slowest < 0:
        return {"verdict": "ok", "culprits": []}
    return {"verdict": "slow", "culprits": [{"kind": "compute", "ranks": [slowest], "nodes": [node[slowest]]}]}
