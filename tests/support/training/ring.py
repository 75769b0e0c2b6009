"""A plain training loop on gloo for tests: a collective a step through laggard's hook, or, told `bare`, past it.

Stands in for a trainer without its start-up: what is recorded, and how, is laggard's own.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from laggard.trainer_hooks.attach import session
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, OPTIMIZER
from laggard.trainer_hooks.session import Session


def main() -> None:
    steps, bare = int(sys.argv[1]), "bare" in sys.argv
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    here = Session() if bare else session()
    here.open()
    recorder = here.recorder
    if bare:
        recorder.set_native_check(lambda: False)  # what passes the hooks is not looked for either
    here.groups.set_role_of_members("dp", tuple(range(dist.get_world_size())))
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
