"""Four ranks: experts spread over pairs; two pipelines of two stages; tensor-parallel pairs with FSDP across them."""

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from common import FSDP2_ON_CPU, finish, loader, print_result
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 1_000_000,
    "zero_allow_untested_optimizer": True,
}


def pipeline() -> None:
    layers = [LayerSpec(torch.nn.Linear, 16, 32), LayerSpec(torch.nn.Linear, 32, 32), LayerSpec(torch.nn.Linear, 32, 4)]
    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    generator = torch.Generator().manual_seed(3)

    def batches() -> Any:
        while True:
            yield torch.randn(4, 16, generator=generator), torch.randn(4, 4, generator=generator)

    source = batches()
    losses = [engine.train_batch(source) for _ in range(4)]
    print_result("pipeline", losses, engine.module.parameters())


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Linear(16, 32)
        self.experts = MoE(32, torch.nn.Linear(32, 32), num_experts=4, ep_size=2, k=1)
        self.out = torch.nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        hidden, _, _ = self.experts(self.into(x))
        return self.out(hidden).square().mean()


def experts() -> None:
    model = Experts()
    parameters = split_params_into_different_moe_groups_for_optimizer(
        {"params": list(model.parameters()), "name": "all"}
    )
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    config = {**CONFIG, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 2}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = []
    for _ in range(4):
        loss = engine(torch.ones(4, 16))
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    print_result("experts", losses, engine.module.parameters())


def tensors() -> None:
    """The tensor-parallel pairs have the same members as the experts' pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if FSDP2_ON_CPU:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x in loader(4):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    print_result("tensors", losses, model.parameters())


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    experts()
    pipeline()
    tensors()
    finish()


if __name__ == "__main__":
    main()
