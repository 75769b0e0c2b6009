"""DeepSpeed's pipeline engine: four stages, four micro-batches a step."""

import deepspeed
import torch
import torch.distributed as dist
import workload.deepspeed_on_cpu  # noqa: F401
from deepspeed.pipe import LayerSpec, PipelineModule
from workload import faults, plan
from workload.chores import after_step
from workload.data import batch
from workload.lengths import LONGER, times_as_long
from workload.model import ROWS, WIDTH, work
from workload.result import finish, report

MICRO_BATCHES = 4


class Layer(torch.nn.Linear):
    def __init__(self, weight):
        super().__init__(WIDTH, WIDTH)
        self.weight_of_work = weight

    def forward(self, data):
        longer = 1 if plan.CASE == "uneven" else times_as_long(plan.step, of_all=True)
        return work(super().forward(data), ROWS * longer * self.weight_of_work // MICRO_BATCHES)


def micro_batches():
    number = 0
    while True:
        if number % MICRO_BATCHES == 0:
            faults.before_input()
        data = batch(number, shared=True)[: ROWS // MICRO_BATCHES]
        yield data, data.roll(1, dims=1)
        number += 1


deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.manual_seed(0)
world = dist.get_world_size()
layers = [LayerSpec(Layer, LONGER if plan.CASE == "uneven" and stage == plan.VICTIM else 1) for stage in range(world)]
model = PipelineModule(layers, num_stages=world, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
for part in model.forward_funcs:
    faults.befall(part)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": ROWS // MICRO_BATCHES,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000,
    },
)
data, losses = micro_batches(), []
for _ in range(plan.STEPS):
    losses.append(engine.train_batch(data).detach())
    after_step(model, evaluate=lambda: None, spread=True)
report(losses, model.parameters())
finish()
