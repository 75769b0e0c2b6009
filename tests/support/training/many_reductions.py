"""A training that all-reduces the gradient of each parameter by itself, some hundred in a step: whatever costs time for
each collective, costs it often. `batch=N`: samples a step."""

import sys
from typing import Any

import torch
import torch.distributed as dist

STEPS = 60
WIDTH = 32
LAYERS = 24


def main() -> None:
    words = dict(word.split("=") for word in sys.argv[1:])
    dist.init_process_group("gloo")
    layers: list[Any] = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        x = torch.full((int(words.get("batch", "8")), WIDTH), float(step % 7))
        model(x).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
