"""A training loop on gloo with one all_reduce a step, which the hooks record.

It stands in for a trainer without the start-up of one. What is recorded, and how, is laggard's own.
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
    recorder = current.recorder
    current.groups.set_role_of_members("dp", tuple(range(dist.get_world_size())))
    tensor = torch.ones(1024)
    for step in range(steps):
        for phase in (FORWARD, BACKWARD):
            recorder.enter(phase)
            time.sleep(0.002)
            if phase == BACKWARD:
                dist.all_reduce(tensor)
            recorder.leave()
        recorder.enter(OPTIMIZER)
        recorder.leave()
        recorder.end_step(step + 1)


main()
