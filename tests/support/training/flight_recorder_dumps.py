"""Four ranks on gloo, in pairs by tensor and by data, one of which does not go on; each dumps torch's Flight Recorder.

Arguments: the folder for the dumps, and what goes wrong in step 3: `hang` (rank 1 stays outside) or `mismatch` (rank 1
calls a barrier where rank 0 calls an all_reduce). The dumps are written when nothing moves any more: each rank knows
in which collective it has to end up.
"""

import contextlib
import datetime
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

RANKS = 4
STUCK_IN_STEP = 3


def main() -> None:
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=600))
    tensor = [dist.new_group(ranks, group_desc="tp") for ranks in ([0, 1], [2, 3])][rank // 2]
    data = [dist.new_group(ranks, group_desc="dp") for ranks in ([0, 2], [1, 3])][rank % 2]
    threading.Thread(target=dump_when_stuck, args=(folder, rank, fault), daemon=True).start()
    with contextlib.suppress(RuntimeError):  # another rank has ended before this one: its dumps are written
        get_stuck(rank, fault, tensor, data)
    threading.Event().wait()


def get_stuck(rank: int, fault: str, tensor: dist.ProcessGroup, data: dist.ProcessGroup) -> None:
    values = torch.ones(1024)
    for step in range(STUCK_IN_STEP + 1):
        if rank == 1 and step == STUCK_IN_STEP:
            if fault == "mismatch":
                dist.barrier(tensor)
            threading.Event().wait()
        dist.all_reduce(values, group=tensor)
        dist.all_reduce(values, group=data)
        dist.barrier()


def dump_when_stuck(folder: Path, rank: int, fault: str) -> None:
    expected = {0: "tp", 1: "tp" if fault == "mismatch" else None}.get(rank, "dp")
    while not is_stuck(expected):
        time.sleep(0.02)
    (folder / f"{rank}.stuck").touch()
    wait_for_all(folder, "stuck")
    (folder / f"fr_trace_{rank}").write_bytes(c10d._dump_fr_trace(True, True, False))
    (folder / f"{rank}.done").touch()
    wait_for_all(folder, "done")
    os._exit(0)


def is_stuck(group: str | None) -> bool:
    """Whether the rank has come to the collective that nobody finishes, or to the point before it."""
    entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])
    if not entries:
        return False
    last = entries[-1]
    if group is None:
        return bool(last["retired"]) and last["collective_seq_id"] == STUCK_IN_STEP
    return not last["retired"] and last["process_group"][1] == group and last["collective_seq_id"] == STUCK_IN_STEP + 1


def wait_for_all(folder: Path, what: str) -> None:
    while len(list(folder.glob(f"*.{what}"))) < RANKS:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
