"""A pipeline on gloo, one stage for each rank: activations go down by send and recv, gradients come back up.

It stands in for a pipeline engine. A stage for which there is a file `sleep-RANK` in the given folder sleeps in its
next forward pass, like one whose kernel never ends. With the argument `deadlock`, each stage receives from the next one
after the last step (the last one from the first), and none sends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from laggard.trainer_hooks.attach import session
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, OPTIMIZER


def main() -> None:
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    current = session()
    current.open()
    recorder, rank, last = current.recorder, dist.get_rank(), dist.get_world_size() - 1
    tensor = torch.ones(1024)
    for step in range(steps):
        recorder.enter(FORWARD)
        if rank > 0:
            dist.recv(tensor, rank - 1)
        compute(folder / f"sleep-{rank}")
        if rank < last:
            dist.send(tensor, rank + 1)
        recorder.leave()
        recorder.enter(BACKWARD)
        if rank < last:
            dist.recv(tensor, rank + 1)
        if rank > 0:
            dist.isend(tensor, rank - 1).wait()
        recorder.leave()
        recorder.enter(OPTIMIZER)
        recorder.leave()
        recorder.end_step(step + 1)
    if "deadlock" in sys.argv:
        dist.recv(tensor, (rank + 1) % (last + 1))


def compute(sleeps: Path) -> None:
    time.sleep(600 if sleeps.exists() else 0.002)


main()
