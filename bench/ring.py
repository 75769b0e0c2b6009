"""What a ring costs: `laggard ring`'s bus bandwidth against a bare loop of torch's all_reduce, two ranks on gloo.

Both run in the same two processes, in turn, so that a machine that slows down slows both. The ring checks results and
times each iteration; the bare loop does what a user would write. Budget: within 3 % at 16 MiB and more.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from common import figures

ITERATIONS = 5
BUDGET_RATIO = 1.03


def bare_seconds(group: Any, tensor: Any) -> float:
    """A collective's time in a loop around torch.distributed's own call."""
    import torch.distributed as distributed

    began = time.perf_counter()
    for _ in range(ITERATIONS):
        distributed.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / ITERATIONS


def rank_main(rank: int, port: int, sizes: Sequence[int], count: int, results: Any) -> None:
    import torch
    import torch.distributed as distributed

    from laggard.rings.worker.group import Group
    from laggard.rings.worker.rank import Exchange

    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=300))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", store=distributed.PrefixStore("bare", store), rank=rank, world_size=2)
    group = Group(torch, "cpu", distributed.PrefixStore("ring", store), rank, 2, 3600.0, "127.0.0.1")
    for size in sizes:
        exchange, tensor = Exchange(group, "all_reduce", size), torch.zeros(size // 4)
        exchange.check()
        pairs = figures.interleaved(
            count,
            lambda tensor=tensor: bare_seconds(None, tensor),  # type: ignore[misc]
            lambda exchange=exchange: sum(group.timed(exchange.run, ITERATIONS)) / ITERATIONS,  # type: ignore[misc]
        )
        if rank == 0:
            results.send((size, pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, nargs="+", default=[16, 64], help="of an all-reduce")
    parser.add_argument("--pairs", type=int, default=41)
    options = parser.parse_args()
    sizes = [size << 20 for size in options.mebibytes]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results, told = context.Pipe(duplex=False)
    words = (port, sizes, options.pairs, told)
    ranks = [context.Process(target=rank_main, args=(rank, *words), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    rows = [judged(*next_result(results, ranks)) for _ in sizes]
    for process in ranks:
        process.join()
    return 0 if figures.show("laggard ring against torch's bare all_reduce, gloo, 2 ranks", rows) else 1


def next_result(results: Connection, ranks: Sequence[Any]) -> tuple[int, list[tuple[float, float]]]:
    """Waits for the pairs of the next size. A rank that fails ends the benchmark."""
    while not results.poll(0.5):
        for rank, process in enumerate(ranks):
            if process.exitcode:
                raise SystemExit(f"rank {rank} ended with {process.exitcode}")
    found: tuple[int, list[tuple[float, float]]] = results.recv()
    return found


def judged(size: int, pairs: list[tuple[float, float]]) -> figures.Figure:
    ratios = [ring / bare for bare, ring in figures.undisturbed(pairs)]
    if len(ratios) < 3:
        ratios = [ring / bare for bare, ring in pairs]
    middle = statistics.median(bare for bare, _ in pairs)
    print(f"{size >> 20} MiB: bare busbw {size / middle / 1e9:.2f} GB/s, {len(ratios)} pairs of {len(pairs)} count")
    return figures.quartiles(f"time at {size >> 20} MiB over the bare loop's", ratios, "times", BUDGET_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
