"""The demo's training job: who is slowed, and how its ranks are started."""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from laggard.demo.nodes import Node
from laggard.demo.processes import LAGGARD, DemoError, Processes
from laggard.errors import UsageError

SLOW_PHASES = ("input", "forward", "backward", "optimizer")
SCRIPT = Path(__file__).with_name("train.py")
JOB_ID = "demo"

_NO_SERVICE_ABOVE = 20000  # that a machine is likely to run
_TRIES = 50


class Injected(NamedTuple):
    """What is slowed. The training script alone is told."""

    rank: int
    phase: str


def choose(options: argparse.Namespace) -> Injected | None:
    """Who is slowed, as the flags say. Raises UsageError for a rank that there is not."""
    if options.slow_rank == "none":
        return None
    if options.slow_rank == "random":
        rank = random.randrange(options.ranks)
    elif options.slow_rank.isdecimal() and int(options.slow_rank) < options.ranks:
        rank = int(options.slow_rank)
    else:
        raise UsageError(f"--slow-rank {options.slow_rank}: give random, none or 0 to {options.ranks - 1}")
    phase = random.choice(SLOW_PHASES) if options.slow_phase == "random" else options.slow_phase
    return Injected(rank, phase)


def start_ranks(
    processes: Processes,
    options: argparse.Namespace,
    nodes: tuple[Node, ...],
    rank_dirs: Mapping[str, Path],
    injected: Injected | None,
) -> list[str]:
    """Starts the job's ranks, spread over the nodes. Returns the processes' names, in the order of ranks."""
    words = ["--steps", str(options.steps), "--zero", str(options.zero)]
    if injected:
        words += ["--slow-rank", str(injected.rank), "--slow-phase", injected.phase, "--slow-by", str(options.slow_by)]
    port = str(_free_port())
    names = []
    local: dict[str, int] = {}
    for rank in range(options.ranks):
        node = nodes[rank * len(nodes) // options.ranks]
        record = ["--record", options.record] if options.record else []
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local.setdefault(node.name, 0)),
            "WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": nodes[0].address,
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": node.interface,
            "LAGGARD_NODE": node.name,
            "LAGGARD_JOB_ID": JOB_ID,
            "LAGGARD_RANK_DIR": str(rank_dirs[node.name]),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PYTHONUNBUFFERED": "1",
        }
        local[node.name] += 1
        processes.start(f"rank-{rank}", [*LAGGARD, "run", *record, str(SCRIPT), *words], node, environment)
        names.append(f"rank-{rank}")
    return names


def installed() -> bool:
    from importlib.util import find_spec

    return all(find_spec(name) for name in ("torch", "deepspeed", "starlette", "uvicorn", "httpx", "numpy"))


def _free_port() -> int:
    """A port for the ranks' meeting: free on every address, and below those that the kernel gives to who asks for any,
    or another's socket may take it until rank 0 listens."""
    lowest = _lowest_ephemeral_port()
    for _ in range(_TRIES):
        port = random.randrange(_NO_SERVICE_ABOVE, lowest) if lowest > _NO_SERVICE_ABOVE else 0
        with contextlib.suppress(OSError), socket.create_server(("", port)) as probe:
            return int(probe.getsockname()[1])
    raise DemoError(f"no port is free between {_NO_SERVICE_ABOVE} and {lowest} for the job's ranks to meet on")


def _lowest_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768  # Linux's default
