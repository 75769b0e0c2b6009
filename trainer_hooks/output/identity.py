"""Finds out which rank this process is, from the launcher's environment and torch."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from laggard import __version__
from laggard.environment import job_id, node_name


class Identity(NamedTuple):
    """A rank's identity; docs/contracts.md has the meaning of the fields. `gpu`: the GPU's UUID, where it has one."""

    job_id: str
    rank: int
    local_rank: int
    world_size: int
    node: str
    gpu: str | None
    attempt: int


def identify(environ: Mapping[str, str], gpu: str | None = None) -> Identity:
    """This process's identity: from torch.distributed where it is initialized, else from the variables of the launcher
    (torchrun, deepspeed, srun). `gpu`: the UUID of the GPU that it computes on, where that is known."""
    rank, world_size = _rank_and_world_size(environ)
    return Identity(
        job_id=job_id(environ),
        rank=rank,
        local_rank=_number(environ, "LOCAL_RANK", "SLURM_LOCALID", default=0),
        world_size=world_size,
        node=node_name(environ),
        gpu=gpu,
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", default=0),
    )


def header(identity: Identity) -> dict[str, object]:
    """The identity for the rank file's header, with the pair of clocks that converts its times to Unix time."""
    return {
        **identity._asdict(),
        "pid": os.getpid(),
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.perf_counter_ns(),
        "laggard": __version__,
    }


def _rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    jax = sys.modules.get("jax._src.distributed")
    with contextlib.suppress(Exception):  # another version of it
        state = jax.global_state if jax is not None else None
        if state is not None and state.client is not None:
            return int(state.process_id), int(state.num_processes)
    rank = _number(environ, "RANK", "SLURM_PROCID", default=0)
    return rank, max(_number(environ, "WORLD_SIZE", "SLURM_NTASKS", default=1), rank + 1)


def _number(environ: Mapping[str, str], *names: str, default: int) -> int:
    for name in names:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return default
