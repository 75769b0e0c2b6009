"""DeepSpeed with one slow rank, to see what laggard says: rank 1 waits 0.1 s more for each batch of its input.

    torchrun --nproc-per-node 2 --no-python laggard run docs/examples/slow_input.py

docs/tasks/deepspeed.md watches it.
"""

import time

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed(dist_backend="gloo", verbose=False)  # "nccl" on GPUs
model = torch.nn.Linear(32, 4)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * 60

    def __getitem__(self, number):
        if number % 8 == 0 and dist.get_rank() == 1:
            time.sleep(0.1)
        return torch.randn(32)


for batch in torch.utils.data.DataLoader(Samples(), batch_size=8):
    engine.backward(engine(batch).square().mean())
    engine.step()
dist.destroy_process_group()
