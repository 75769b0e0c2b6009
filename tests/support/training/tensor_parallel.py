"""Tensor parallelism by DTensor, whose rank 1 is slow in each forward pass; or a collective in a compiled graph."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from beats import after_a_beat
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 32)
        self.outer = torch.nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        time.sleep(0.1 * dist.get_rank())
        return self.outer(torch.relu(self.inner(x)))


def reduced(x: Any) -> Any:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def main() -> None:
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model: Any = Model()
    after: Any = torch.nn.Identity()
    if sys.argv[1] == "eager":
        model = parallelize_module(model, mesh, {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    else:
        after = torch.compile(reduced, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        hidden = model(torch.ones(8, 16))
        after(hidden.detach())
        hidden.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    after_a_beat()  # which writes facts
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
