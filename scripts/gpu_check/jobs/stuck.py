"""Three ranks over gloo, which may share a GPU; after some steps rank 1 launches a kernel that never ends.

Each two of them are a group. Once rank 1 is stuck all ranks launch all all-reduces, which the hosts can do; that of the
two others ends, and of rank 1's none ever does. Some seconds later each rank writes what torch's Flight Recorder holds
into the folder DUMPS, as torch's debug server would. Then it stands until it is killed.
"""

from __future__ import annotations

import argparse
import datetime
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from gpu_check.ending import end_with_parent
from gpu_check.jobs.loads import Loads, find_loads

STUCK, STEPS, NUMBERS = 1, 12, 1024
PAIRS = ((0, STUCK, "tp"), (STUCK, 2, "dp"), (0, 2, "cp"))  # in the order in which each rank comes to its own
STILL_SECONDS = 6.0  # for as long nothing moves when the dumps are written: `laggard locate` wants five


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dumps", type=Path)
    parser.add_argument("--late", type=float, default=0.0, help="how many seconds after rank 1 the others come")
    options = parser.parse_args()
    end_with_parent()
    torch.set_num_threads(1)
    loads = find_loads()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    rank = dist.get_rank()
    pairs = [(dist.new_group([one, other], group_desc=name), (one, other)) for one, other, name in PAIRS]
    groups = [group for group, members in pairs if rank in members]
    tensors = [torch.ones(NUMBERS, device=loads.device) for _ in groups]
    train(loads, groups, tensors)
    dist.barrier()
    if rank == STUCK:
        loads.never_ends()
    else:
        time.sleep(options.late)
    threading.Thread(target=dump, args=(options.dumps, rank, loads if rank == STUCK else None), daemon=True).start()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, groups, strict=True)]
    for work in works:
        work.wait()
    loads.synchronize()
    print("ENDED", flush=True)


def train(loads: Loads, groups: list[Any], tensors: list[Any]) -> None:
    model = torch.nn.Linear(64, 64).to(loads.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(8, 64, device=loads.device)
    for _ in range(STEPS):
        model(x).square().mean().backward()
        for tensor, group in zip(tensors, groups, strict=True):
            dist.all_reduce(tensor, group=group)
        optimizer.step()
        optimizer.zero_grad()
    loads.synchronize()


def dump(folder: Path, rank: int, loads: Loads | None) -> None:
    time.sleep(STILL_SECONDS)
    write = getattr(c10d, "_dump_fr_trace", None)
    if write is None:
        return
    try:
        found = write(True, True, False, "gloo")
    except TypeError:  # before torch 2.15 there is one recorder, and no name
        found = write(True, True, False)
    partial = folder / f"{rank}.partial"
    partial.write_bytes(found)
    partial.replace(folder / f"fr_trace_{rank}")
    if loads is not None:
        loads.freeze()


if __name__ == "__main__":
    main()
