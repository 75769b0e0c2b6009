"""Plain torch, one way to train after another: DDP, accumulation, a communication hook, both versions of FSDP, tensor
parallel."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from common import (
    DDP_COMPILES,
    DELAYED_PHASES,
    FSDP2_ON_CPU,
    Model,
    SlowAdamW,
    finish,
    loader,
    measured,
    own_all_reduce,
    print_measured_step,
    print_result,
    set_delay,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP


def train(name: str, model: Any, accumulate: int = 1, steps: int = 6) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number, x in enumerate(loader(steps * accumulate)):
        updates = (number + 1) % accumulate == 0
        with nullcontext() if updates or not isinstance(model, (DDP, FSDP)) else model.no_sync():
            loss = model(x)
            loss.backward()
        losses.append(loss.detach())
        if updates:
            optimizer.step()
            optimizer.zero_grad()
    print_result(name, losses, model.parameters())


def ddp() -> None:
    train("ddp", DDP(Model(), bucket_cap_mb=0.005))
    train("accumulated", DDP(Model()), accumulate=3)
    hooked = DDP(Model(), bucket_cap_mb=0.005)
    hooked.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
    train("comm_hook", hooked)
    unused = Model()
    unused.extra = torch.nn.Linear(3, 3)
    train("unused", DDP(unused, find_unused_parameters=True))


def fsdp1() -> None:
    settings: dict[str, Any] = {
        "auto_wrap_policy": ModuleWrapPolicy({torch.nn.Linear}),
        "device_id": torch.device("cpu"),  # else FSDP asks for an accelerator
    }
    train("fsdp1", FSDP(Model(), **settings))
    train("fsdp1_gradients", FSDP(Model(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, **settings))
    train("fsdp1_original", FSDP(Model(), use_orig_params=True, **settings), accumulate=2)


def fsdp() -> None:
    if not FSDP2_ON_CPU:
        return
    from torch.distributed.fsdp import fully_shard

    model = Model()
    for layer in (model.first, model.middle):
        fully_shard(layer)
    train("fsdp2", fully_shard(model))


def tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print_result("tensor_parallel", losses, model.parameters())


def compiled() -> None:
    """A function with a collective in it, compiled into one graph; another whose collective breaks the graph."""

    def reduced(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    whole = torch.compile(reduced, backend="eager", fullgraph=True)
    print_result("compiled", [whole(torch.full((4,), float(number))).sum() for number in range(3)], [])
    if DDP_COMPILES:
        train("compiled_ddp", torch.compile(DDP(Model()), backend="eager"))


def various() -> None:
    """Object collectives, a group of the script's own, sends and receives."""
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    group = dist.new_group([0, 1])
    dist.broadcast_object_list([gathered], src=0, group=group)
    rank, message = dist.get_rank(), torch.zeros(5)
    for _ in range(3):
        dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, message, 1 - rank), dist.P2POp(dist.irecv, torch.zeros(5), 1 - rank)]
    )
    for work in works:
        work.wait()
    print_result("various", [gathered[0]["rank"], gathered[1]["rank"]], [])


def late() -> None:
    """Rank 1 is late in one phase after another."""
    model = DDP(Model())
    delays = model.module.delays = SlowAdamW.delays = {}
    optimizer = SlowAdamW(model.parameters(), lr=1e-3)
    batches = iter(loader(len(DELAYED_PHASES), delays))
    for phase in DELAYED_PHASES:
        set_delay(delays, phase)
        with measured("input"):
            batch = next(batches)
        with measured("forward"):
            loss = model(batch)
        with measured("backward"):
            loss.backward()
        own_all_reduce(delays)
        with measured("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        print_measured_step()
    print_result("late", [loss.detach()], model.parameters())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    for part in (ddp, fsdp1, fsdp, tensor_parallel, compiled, various, late):
        part()
    finish()


if __name__ == "__main__":
    main()
