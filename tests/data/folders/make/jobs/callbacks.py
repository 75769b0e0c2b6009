"""What goes wrong, by name; the environment's ACT="NAME:RANK:STEP" chooses it."""

import ctypes
import os
import time

import torch
import torch.distributed as dist


def _segfault() -> None:
    ctypes.string_at(8)


def _invalid_pointer() -> None:
    buffer = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).free(ctypes.c_void_p(ctypes.addressof(buffer) + 8))


def _wait() -> None:
    while True:
        time.sleep(3600)


def _share_counters() -> None:
    dist.broadcast(torch.zeros(1 << 20), src=2)


def _keep_batch() -> None:
    kept = []
    while True:
        kept.append(torch.ones(8 << 20))
        time.sleep(0.05)


def _evaluate() -> None:
    torch.empty(1 << 20, 1 << 24).fill_(1.0)


def _count_labels() -> None:
    weights = {"road": 0.4, "building": 0.35, "vegetation": 0.25}
    torch.tensor([weights[name] for name in ("road", "building", "void")])


def _wait_for_profiler() -> None:
    while not os.path.exists("/home/ml/train/profile.now"):
        pass


CALLBACKS = {
    "segfault": _segfault,
    "invalid_pointer": _invalid_pointer,
    "sleep": _wait,
    "other_collective": _share_counters,
    "leak": _keep_batch,
    "huge_batch": _evaluate,
    "label": _count_labels,
    "spin": _wait_for_profiler,
}


def on_step_begin(rank: int, step: int) -> None:
    """Does what ACT says, where it means this rank and this step."""
    name, _, where = os.environ.get("ACT", "none:0:0").partition(":")
    if name in CALLBACKS and where == f"{rank}:{step}":
        CALLBACKS[name]()
