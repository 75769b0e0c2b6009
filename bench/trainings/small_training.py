"""A training loop of a few hundred microseconds a step, with one tool or none watching it: what benchmarks compare.

Prints one line of JSON: `{"step_us": [...], "private_bytes": N}`, of the steps after the warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
import torch.distributed
from torch.utils.data import DataLoader, TensorDataset

WATCHERS = ("none", "laggard", "profiler")
WARM_UP = 50
WIDTH = 64

Step = Callable[[], "contextlib.AbstractContextManager[Any]"]


@contextlib.contextmanager
def watched(by: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Step]:
    """What each step is to be run in."""
    if by == "laggard":
        import laggard.trainer_hooks

        laggard.trainer_hooks.attach(model, optimizer)
        yield contextlib.nullcontext
    elif by == "profiler":
        from torch.profiler import ProfilerActivity, profile, schedule

        plan = schedule(wait=0, warmup=0, active=20)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda _: None) as profiler:

            @contextlib.contextmanager
            def profiled() -> Iterator[None]:
                yield
                profiler.step()

            yield profiled
    else:
        yield contextlib.nullcontext


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watcher", choices=WATCHERS, default="none")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    total = options.steps + WARM_UP
    data = DataLoader(TensorDataset(torch.randn(total * 4, WIDTH)), batch_size=4)
    with watched(options.watcher, model, optimizer) as step:
        times = train(model, optimizer, data, step)
    told = {
        "step_us": [round(each, 2) for each in times],
        "private_bytes": psutil.Process().memory_full_info().uss,
    }
    print(json.dumps(told), flush=True)
    os._exit(0)  # what a watcher does at its end is not what a step costs


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Any, step: Step) -> list[float]:
    """Microseconds of each step after the warm-up, from one end to the next, its input included."""
    times: list[float] = []
    ended = time.perf_counter()
    batches = iter(data)
    while True:
        with step():
            batch = next(batches, None)
            if batch is None:
                return times[WARM_UP:]
            optimizer.zero_grad()
            model(batch[0]).square().mean().backward()
            optimizer.step()
        now = time.perf_counter()
        times.append((now - ended) * 1e6)
        ended = now


if __name__ == "__main__":
    main()
