"""What a ring costs: `laggard ring`'s bus bandwidth against a bare loop of torch's all_reduce, two ranks on gloo.

Both run in the same two processes, in turn, so that a machine that slows down slows both. The ring checks results and
times each iteration; the bare loop does what a user would write. Budget: within 3 % at 16 MiB and more.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from datetime import timedelta
from typing import Any

from common import figures

SIZES = (16 << 20, 64 << 20)
PAIRS = 41
ITERATIONS = 5
BUDGET_RATIO = 1.03


def bare_seconds(group: Any, tensor: Any) -> float:
    """A collective's time in a loop around torch.distributed's own call."""
    import torch.distributed as distributed

    began = time.perf_counter()
    for _ in range(ITERATIONS):
        distributed.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / ITERATIONS


def rank_main(rank: int, port: int, results: Any) -> None:
    import torch
    import torch.distributed as distributed

    from laggard.rings.worker.collectives import Exchange
    from laggard.rings.worker.group import Group

    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=300))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", store=distributed.PrefixStore("bare", store), rank=rank, world_size=2)
    group = Group(torch, "cpu", distributed.PrefixStore("ring", store), rank, 2, 3600.0, "127.0.0.1")
    for size in SIZES:
        exchange, tensor = Exchange(group, "all_reduce", size), torch.zeros(size // 4)
        exchange.check()
        pairs = figures.interleaved(
            PAIRS,
            lambda tensor=tensor: bare_seconds(None, tensor),  # type: ignore[misc]
            lambda exchange=exchange: sum(group.timed(exchange.run, ITERATIONS)) / ITERATIONS,  # type: ignore[misc]
        )
        if rank == 0:
            results.put((size, pairs))


def main() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [context.Process(target=rank_main, args=(rank, port, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    rows = []
    for _ in SIZES:
        size, pairs = results.get()
        ratios = [ring / bare for bare, ring in figures.undisturbed(pairs)]
        if len(ratios) < 3:
            ratios = [ring / bare for bare, ring in pairs]
        middle = statistics.median(bare for bare, _ in pairs)
        print(f"{size >> 20} MiB: bare busbw {size / middle / 1e9:.2f} GB/s, {len(ratios)} pairs of {len(pairs)} count")
        rows.append(figures.quartiles(f"time at {size >> 20} MiB over the bare loop's", ratios, "times", BUDGET_RATIO))
    for process in ranks:
        process.join()
    return 0 if figures.show("laggard ring against torch's bare all_reduce, gloo, 2 ranks", rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
