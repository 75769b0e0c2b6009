"""DeepSpeed's engine with the ZeRO stage that is its argument."""

import sys

import deepspeed
import torch
import workload.deepspeed_on_cpu  # noqa: F401
from workload.chores import after_step
from workload.data import batch as one_batch
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

deepspeed.init_distributed(dist_backend="gloo", verbose=False)
stage = int(sys.argv[1])
model = Model()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)
trained = engine if stage == 3 else model  # what one rank alone can evaluate
losses = []
for batch in loader():
    loss = engine(batch).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
    after_step(model, evaluate=lambda: trained(one_batch(0)), spread=stage == 3)
report(losses, engine.module.parameters())
finish()
