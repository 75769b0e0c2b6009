"""DeepSpeed, in two ranks. On CPUs the first run takes a minute longer, in which DeepSpeed compiles its collectives.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/deepspeed_zero.py

Without `laggard run` the one line in it attaches the hooks; DeepSpeed's own launcher: docs/hooks.md.
"""

import deepspeed
import torch

import laggard.trainer_hooks

deepspeed.init_distributed(dist_backend="gloo", verbose=False)  # "nccl" on GPUs
model = torch.nn.Linear(32, 4)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)
laggard.trainer_hooks.attach(engine)

data = torch.utils.data.DataLoader(torch.randn(80, 32), batch_size=8)
for batch in data:
    engine.backward(engine(batch).square().mean())
    engine.step()
torch.distributed.destroy_process_group()
