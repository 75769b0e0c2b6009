"""Documents of stacks as ranks write them."""

import time
from typing import Any

from laggard.stacks.sampled import ASKED, Counted, Frame, Sampled, Thread

TRAIN = Frame("train", "/home/u/train.py", 20)
TOKENIZE = Frame("tokenize", "/home/u/data.py", 88)
ALL_REDUCE = Frame("all_reduce", "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 2800)


def sampled(rank: int = 0, share: float = 0.0, **changes: Any) -> Sampled:
    """A rank that is in tokenize for `share` of its 200 samples, and else waits in all_reduce."""
    slow = round(200 * share)
    stacks = (Counted(slow, (TOKENIZE, TRAIN), "forward"), Counted(200 - slow, (ALL_REDUCE, TRAIN), waits="all_reduce"))
    threads = (Thread("MainThread", tuple(each for each in stacks if each.times)),)
    values: dict[str, Any] = dict(
        job_id="j1", rank=rank, node="n0", pid=4000 + rank, why=ASKED, at=time.time(), seconds=10.0, threads=threads
    )
    return Sampled(**{**values, **changes})
