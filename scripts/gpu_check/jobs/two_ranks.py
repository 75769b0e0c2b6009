"""Two ranks of DDP over gloo, which may share a GPU, with work of known kind in each forward pass. It knows nothing of
laggard.

They work in turns: rank 0 first, and rank 1 once rank 0's work is done. So the GPU is rank 1's alone in its turn, and
who disturbs it then (FLAG is set) disturbs rank 1 and nobody else. With --together they work at the same time, and
FLAG is set from the middle step on: then both are disturbed. Each rank prints one line, RESULT and JSON: how long its
work took in each step, by events of its own.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_check.ending import end_with_parent
from gpu_check.jobs.flag import Flag
from gpu_check.jobs.loads import KINDS, WARM_UP_SECONDS, Loads, find_loads, unit_ms

WIDTH, BATCH = 64, 8


class Working(torch.nn.Module):
    """A layer, after this rank's turn."""

    def __init__(self, turn: Callable[[], None]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self._turn = turn

    def forward(self, x: Any) -> Any:
        self._turn()
        return self.layer(x)


class Turns:
    """The turns of this rank. `stamps`: around the work of each step. `disturbed`: whether rank 1 sets the flag in its
    turns."""

    def __init__(self, loads: Loads, options: argparse.Namespace) -> None:
        self.stamps: list[tuple[Any, Any]] = []
        self._loads, self._unit = loads, loads.unit(options.kind)
        self._flag = Flag(options.flag) if options.flag else None
        self._together, self._middle = options.together, options.steps // 2
        self._second = dist.get_rank() == 1
        self._count = round(self._counted(options) * (options.factor if self._second else 1.0))

    def _counted(self, options: argparse.Namespace) -> int:
        """How many units make the work: measured by rank 0 alone, and the same for both."""
        count = torch.zeros(1, dtype=torch.int64)
        if not self._second:
            count[0] = max(1, round(options.ms / unit_ms(self._loads, self._unit, options.warm_up)))
        dist.broadcast(count, 0)
        return int(count)

    def __call__(self) -> None:
        in_turns = not self._together
        if in_turns and self._second:
            dist.barrier()
        self._set_flag(self._second if in_turns else len(self.stamps) >= self._middle)
        before = self._loads.stamp()
        for _ in range(self._count):
            self._unit()
        self.stamps.append((before, self._loads.stamp()))
        self._loads.synchronize()
        if in_turns and self._second:
            self._set_flag(False)
        if in_turns and not self._second:
            dist.barrier()

    def _set_flag(self, on: bool) -> None:
        if self._flag is not None and (self._second or self._together):
            self._flag.set(on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ms", type=float, default=40.0, help="how long the work takes undisturbed")
    parser.add_argument("--factor", type=float, default=1.0, help="how many times as much work rank 1 has")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--flag", type=Path)
    parser.add_argument("--cores", help="A,B: the cores of rank 0 and rank 1")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_SECONDS, help="seconds")
    options = parser.parse_args()
    end_with_parent()
    if options.cores:
        os.sched_setaffinity(0, {int(options.cores.split(",")[int(os.environ["RANK"])])})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loads = find_loads()
    dist.init_process_group("gloo")
    turns = Turns(loads, options)
    train(turns, loads, options.steps)
    print("RESULT", json.dumps({"work_ms": [loads.between(*pair) for pair in turns.stamps]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def train(turns: Turns, loads: Loads, steps: int) -> None:
    ids = [loads.device.index] if loads.device.type == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(Working(turns).to(loads.device), device_ids=ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(BATCH, WIDTH, device=loads.device)
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    loads.synchronize()


if __name__ == "__main__":
    main()
