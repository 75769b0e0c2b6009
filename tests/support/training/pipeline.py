"""A pipeline on gloo, one stage for each rank: activations go down by send and recv, gradients come back up.

It stands in for a pipeline engine.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from laggard.trainer_hooks.attach import session
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, OPTIMIZER


def main() -> None:
    steps = int(sys.argv[1])
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    current = session()
    current.open()
    recorder, rank, last = current.recorder, dist.get_rank(), dist.get_world_size() - 1
    tensor = torch.ones(1024)
    for step in range(steps):
        recorder.enter(FORWARD)
        if rank > 0:
            dist.recv(tensor, rank - 1)
        time.sleep(0.002)
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


main()
