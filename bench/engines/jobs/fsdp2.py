"""fully_shard, with layers gathered ahead of their use, forward and backward."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from workload.chores import after_step
from workload.data import batch as one_batch
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
model = Model()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
layers = list(model)
for layer, following in zip(layers, layers[1:], strict=False):
    layer.set_modules_to_forward_prefetch([following])
    following.set_modules_to_backward_prefetch([layer])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
whole = functools.partial(get_model_state_dict, model, options=StateDictOptions(full_state_dict=True))
losses = []
for batch in loader():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    after_step(model, whole, lambda: model(one_batch(0)), spread=True)
report(losses, model.parameters())
finish()
