"""A DDP training of two layers whose parts take as long as they are told to: `PART=MILLISECONDS ...` more than usual.

Parts: input, forward, backward, optimizer, between_steps, checkpoint (each tenth step), reduce (so many
kilobytes more to reduce), gather (so many more to gather), rank1 (rank 1's forward pass alone).
"""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import laggard.trainer_hooks as hooks

STEPS = 70
WIDTH = 192
FLOATS = 256  # of a kilobyte


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, place: int) -> Any:
        time.sleep(extra("input") / 8)
        return torch.full((WIDTH,), float(place % 7))


class Later(torch.autograd.Function):
    """Passes a tensor on; its backward pass takes a while."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        time.sleep(0.002 + extra("backward"))
        return gradients[0]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        time.sleep(0.003 + extra("forward") + (extra("rank1") if dist.get_rank() == 1 else 0))
        return Later.apply(self.second(x)).square().mean()


class Slow(torch.optim.SGD):
    def step(self, *words: Any, **named: Any) -> Any:
        time.sleep(0.002 + extra("optimizer"))
        return super().step(*words, **named)


EXTRA = {part: float(value) / 1000 for part, _, value in (word.partition("=") for word in sys.argv[1:])}


def extra(part: str) -> float:
    """Seconds."""
    return EXTRA.get(part, 0.0)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(Model())
    optimizer = Slow(model.parameters(), lr=1e-3)
    whole = torch.zeros(FLOATS + int(extra("reduce") * 1000 * FLOATS))
    part = torch.zeros(FLOATS + int(extra("gather") * 1000 * FLOATS))
    parts = [torch.empty_like(part) for _ in range(2)]
    for step, x in enumerate(DataLoader(Rows(), batch_size=8)):
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(whole)
        dist.all_gather(parts, part)
        if step % 10 == 9:
            with hooks.phase("checkpoint"):
                time.sleep(0.02 + extra("checkpoint"))
        time.sleep(0.001 + extra("between_steps"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
