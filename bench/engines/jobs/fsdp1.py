"""FullyShardedDataParallel, the older of the two."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from workload.chores import after_step
from workload.data import batch as one_batch
from workload.data import loader
from workload.model import Block, Model
from workload.result import finish, report

dist.init_process_group("gloo")
model = FullyShardedDataParallel(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
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
