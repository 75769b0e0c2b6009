"""One rank of DDP that trains as many steps as each line of its standard input asks for, and answers with the
milliseconds of each, by events of its own. It knows nothing of laggard.

Two of these, one under `laggard run`, share a GPU and are asked by turns: so what the hooks cost is measured in pairs
of neighbouring steps, in which the GPU has the same clock rate and temperature.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gpu_check.ending import end_with_parent
from gpu_check.jobs.loads import Loads, find_loads

ON_CPU = os.environ.get("GPU_CHECK_REHEARSAL") == "1"
CALLS = 4  # all-reduces of the script's own in a step, beside DDP's


class Size(NamedTuple):
    width: int
    layers: int
    batch: int


SIZES = {"small": Size(256, 8, 32), "large": Size(4096, 4, 2048)}
"""A step that the host's launches take, and one that the GPU's work does."""
REHEARSED = {"small": Size(16, 2, 4), "large": Size(64, 4, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    options = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loads = find_loads()
    dist.init_process_group("gloo" if ON_CPU else "nccl")
    training = Training(loads, (REHEARSED if ON_CPU else SIZES)[options.size])
    print("READY", flush=True)
    for line in sys.stdin:
        print(json.dumps(training.steps(int(line))), flush=True)
    dist.destroy_process_group()


class Training:
    def __init__(self, loads: Loads, size: Size) -> None:
        self._loads = loads
        layers = (torch.nn.Linear(size.width, size.width) for _ in range(size.layers))
        ids = [loads.device.index] if loads.device.type == "cuda" else None
        model = torch.nn.Sequential(*layers).to(loads.device)
        self._model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self._x = torch.ones(size.batch, size.width, device=loads.device)
        self._loss = torch.zeros(1, device=loads.device)

    def steps(self, count: int) -> list[float]:
        """The milliseconds of each of `count` steps."""
        self._loads.synchronize()
        ends: list[Any] = [self._loads.stamp()]
        for _ in range(count):
            self._model(self._x).mean().backward()
            for _ in range(CALLS):
                dist.all_reduce(self._loss)
            self._optimizer.step()
            self._optimizer.zero_grad()
            ends.append(self._loads.stamp())
        self._loads.synchronize()
        return [self._loads.between(*pair) for pair in zip(ends, ends[1:], strict=False)]


if __name__ == "__main__":
    main()
