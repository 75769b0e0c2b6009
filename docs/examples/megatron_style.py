"""A layer split over ranks by hand, as Megatron-LM has it; four ranks in two tensor-parallel groups.

    torchrun --nproc-per-node 4 --no-python laggard run docs/examples/megatron_style.py

Without `laggard run` the one line in it attaches the hooks.
"""

import torch
import torch.distributed as dist

import laggard.trainer_hooks

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, tp = dist.get_rank(), 2
data_groups = [list(range(part, dist.get_world_size(), tp)) for part in range(tp)]
tensor_groups = [list(range(first, first + tp)) for first in range(0, dist.get_world_size(), tp)]
dp_group, _ = dist.new_subgroups_by_enumeration(data_groups, group_desc="DATA_PARALLEL_GROUP")  # roles by description
tp_group, _ = dist.new_subgroups_by_enumeration(tensor_groups, group_desc="TENSOR_MODEL_PARALLEL_GROUP")


class RowParallelLinear(torch.nn.Linear):
    """Each rank has a slice of the input's columns; the partial results are summed."""

    def forward(self, x):
        partial = super().forward(x)
        total = partial.detach().clone()
        dist.all_reduce(total, group=tp_group)
        return partial + (total - partial).detach()  # its gradient is the partial result's


model = RowParallelLinear(32 // tp, 4, bias=False)
optimizer = torch.optim.AdamW(model.parameters())
laggard.trainer_hooks.attach(model, optimizer)

torch.manual_seed(rank // tp)  # one batch for all ranks of a tensor-parallel group
data = torch.utils.data.DataLoader(torch.randn(80, 32), batch_size=8)
for batch in data:
    model(batch.chunk(tp, dim=1)[rank % tp]).square().mean().backward()
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.SUM, group=dp_group)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
