"""fully_shard with distributed checkpoints that a thread saves beside the training, each 20 steps."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from workload.chores import after_step
from workload.data import batch as one_batch
from workload.data import loader
from workload.model import Model
from workload.result import finish, report

dist.init_process_group("gloo")
saving = dist.new_group(backend="gloo")
model = Model()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
losses, saved = [], None
for step, batch in enumerate(loader()):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    if step % 20 == 19:
        if saved is not None:
            saved.result()
        state = {"model": get_model_state_dict(model)}
        saved = dcp.async_save(state, checkpoint_id=f"{folder[0]}/{step}", process_group=saving)
    after_step(model, lambda: get_model_state_dict(model), lambda: model(one_batch(0)), spread=True)
if saved is not None:
    saved.result()
report(losses, model.parameters())
finish()
