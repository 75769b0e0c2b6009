"""Stands in for a DeepSpeed training of two ranks under `laggard run --record`: reads its configuration, writes the
recording that such a run leaves, and prints a loss. Step times follow from the configuration, NCCL_MAX_CTAS and
LAGGARD_REDUCE_SCATTER. Stages
below 2 have no memory for a micro-batch of 8; without contiguous gradients it is twice as fast and diverges.

    python tuned_training.py CONFIG RECORDING
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

RANKS = 2


def seconds_of(config: dict[str, Any], blocks: str, scattered: bool = False) -> float:
    """The best: stage 2, micro-batch 8, overlap, buckets of 5e7, 32 blocks, a true reduce-scatter."""
    zero = config["zero_optimization"]
    steps = config["gradient_accumulation_steps"]
    communication = {0: 0.05, 1: 0.04, 2: 0.02 + 0.01 * steps, 3: 0.08 * steps}[zero["stage"]]
    communication *= {5_000_000: 1.4, 50_000_000: 0.5}.get(zero.get("reduce_bucket_size", 500_000_000), 1.0)
    communication *= 0.5 if zero.get("overlap_comm", zero["stage"] == 3) else 1.0
    communication *= 0.8 if blocks == "32" else 1.0
    communication *= 0.7 if scattered else 1.0
    return 0.1 + 0.03 * float(steps) + communication


def records(rank: int, seconds: float, steps: int = 8) -> list[dict[str, Any]]:
    noise = random.Random()
    found: list[dict[str, Any]] = [
        {"laggard_recording": 1, "job_id": "j"},
        {"kind": "rank", "rank": rank, "node": "n0", "groups": {"g": {"role": "dp", "ranks": [0, 1]}}},
    ]
    start = 1000.0
    for step in range(steps):
        end = start + seconds * noise.lognormvariate(0, 0.01) * (3 if step < 2 else 1)
        found += [
            {"kind": "span", "rank": rank, "step": step, "name": "forward", "start": start, "end": end},
            {"kind": "step", "rank": rank, "step": step, "start": start, "end": end},
        ]
        start = end
    return found


def main() -> int:
    config = json.loads(Path(sys.argv[1]).read_text())
    zero, micro = config["zero_optimization"], config["train_micro_batch_size_per_gpu"]
    whole = micro * config["gradient_accumulation_steps"] * RANKS
    if config.get("train_batch_size", whole) != whole:
        raise SystemExit("AssertionError: Check batch related parameters")
    if zero["stage"] < 2 and micro >= 8:
        raise SystemExit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB.")
    diverges = not zero.get("contiguous_gradients", True)
    folder = Path(sys.argv[2])
    folder.mkdir()
    scattered = os.environ.get("LAGGARD_REDUCE_SCATTER") == "1"
    for rank in range(RANKS):
        seconds = seconds_of(config, os.environ.get("NCCL_MAX_CTAS", ""), scattered) / (2 if diverges else 1)
        lines = [json.dumps(each) + "\n" for each in records(rank, seconds)]
        (folder / f"rank{rank}.jsonl").write_text("".join(lines))
    print(f"step 8 loss: {'nan' if diverges else 2.31}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
