"""A parameter server on torch.distributed.rpc: rank 0 has the weights, and adds the gradients of the others."""

import os

import torch
from torch.distributed import rpc
from workload.chores import after_step
from workload.data import loader
from workload.model import Model
from workload.result import report

weights = Model()
server_optimizer = torch.optim.SGD(weights.parameters(), lr=1e-3)


def weights_of_server():
    return [parameter.detach().clone() for parameter in weights.parameters()]


def add(gradients):
    for parameter, gradient in zip(weights.parameters(), gradients, strict=True):
        parameter.grad = gradient
    server_optimizer.step()


def train():
    model, losses = Model(), []
    for batch in loader():
        for parameter, value in zip(model.parameters(), rpc.rpc_sync("rank0", weights_of_server), strict=True):
            parameter.data.copy_(value)
        loss = model(batch).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rpc.rpc_sync("rank0", add, args=(gradients,))
        losses.append(loss.detach())
        after_step(model)
    report(losses, [])


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world)
if rank > 0:
    train()
rpc.shutdown()
