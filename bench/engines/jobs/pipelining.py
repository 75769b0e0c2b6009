"""torch.distributed.pipelining with the schedule that is its argument: gpipe, 1f1b, interleaved or zero_bubble."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from workload import faults, plan
from workload.chores import after_step
from workload.data import batch
from workload.lengths import LONGER, times_as_long
from workload.model import ROWS, WIDTH, work
from workload.result import finish, report

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zero_bubble": (ScheduleInterleavedZeroBubble, 2),
}
MICRO_BATCHES = 4
ACTIVATIONS = int(os.environ.get("ENGINE_ACTIVATIONS", WIDTH))
"""Numbers a row that go from stage to stage: the model's, and as many zeros as make the messages of a larger one."""


class Stage(torch.nn.Module):
    """A part of the model; a larger one has more layers."""

    def __init__(self, layers):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))

    def forward(self, data):
        longer = 1 if plan.CASE == "uneven" else times_as_long(plan.step, of_all=True)
        data = widened(self.layers(data[:, :WIDTH]))
        return work(data, ROWS * longer * len(self.layers) // (MICRO_BATCHES * stages_of_rank))


def widened(data):
    return torch.nn.functional.pad(data, (0, ACTIVATIONS - WIDTH))


def evaluate():
    """A pass through the pipeline, without gradients."""
    engine.eval(*([data] if rank == 0 else []), **({"target": data, "losses": []} if rank == world - 1 else {}))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
schedule, stages_of_rank = SCHEDULES[sys.argv[1]]
layers = LONGER if plan.CASE == "uneven" and plan.is_victim() else 1
parts = torch.nn.ModuleList(Stage(layers) for _ in range(stages_of_rank))
faults.befall(parts[0])
stages = [
    PipelineStage(part, rank + number * world, world * stages_of_rank, torch.device("cpu"))
    for number, part in enumerate(parts)
]
loss_of = torch.nn.functional.mse_loss
engine = schedule(stages[0] if stages_of_rank == 1 else stages, MICRO_BATCHES, loss_fn=loss_of)
optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-3)
losses = []  # of the last stage: of each step's micro-batches
for step in range(plan.STEPS):
    faults.before_input()
    data = widened(batch(0 if plan.CASE == "turns" else step, shared=True)[:ROWS])
    of_step = []
    words = {"target": data.roll(1, dims=1), "losses": of_step} if rank == world - 1 else {}
    engine.step(*([data] if rank == 0 else []), **words)
    optimizer.step()
    optimizer.zero_grad()
    losses += (loss.detach() for loss in of_step)
    after_step(parts, evaluate=evaluate, spread=True)
report(losses, parts.parameters())
finish()
