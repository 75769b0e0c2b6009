"""A small real job: rank 1 is slow in a function of its own, or at step `--hang` stands still in one."""

import argparse
import time

import torch
import torch.distributed as dist


def tokenize(seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += 1
    return count


def save_checkpoint() -> None:
    time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(arguments.steps):
        if step == arguments.hang and rank == 1:
            save_checkpoint()
        tokenize(0.12 if rank == 1 else 0.004)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
