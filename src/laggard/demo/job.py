"""The demo's training job: which rank is slowed, and how the ranks start."""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from laggard.demo.nodes import DemoNode
from laggard.demo.processes import LAGGARD, DemoError, Processes
from laggard.errors import UsageError

SLOW_PHASES = ("input", "forward", "backward", "optimizer")
SCRIPT = Path(__file__).with_name("train.py")
JOB_ID = "demo"

_LOWEST_PORT = 20000  # above those on which services usually listen
_PORT_TRIES = 50


class Injected(NamedTuple):
    """The fault that the demo injects: a slow rank, and its slow phase. Only the training script knows of it."""

    rank: int
    phase: str


def choose_fault(options: argparse.Namespace) -> Injected | None:
    """The fault that the flags ask for; None: no rank is slowed. Raises UsageError for a rank that does not exist."""
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
    nodes: tuple[DemoNode, ...],
    rank_dirs: Mapping[str, Path],
    injected: Injected | None,
) -> list[str]:
    """Starts the job's ranks, spread over the nodes. Returns the names of their processes, in order of the ranks."""
    words = ["--steps", str(options.steps), "--zero", str(options.zero)]
    if injected:
        words += ["--slow-rank", str(injected.rank), "--slow-phase", injected.phase, "--slow-by", str(options.slow_by)]
    port = str(free_port())
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


def is_installed() -> bool:
    """Whether the packages that the demo needs are installed."""
    from importlib.util import find_spec

    return all(find_spec(name) for name in ("torch", "deepspeed", "starlette", "uvicorn", "httpx", "numpy"))


def free_port() -> int:
    """A port for the ranks' rendezvous, free on every address. It is below the ephemeral ports, because the kernel
    could give one of those to another process before rank 0 listens."""
    ephemeral = _lowest_ephemeral_port()
    for _ in range(_PORT_TRIES):
        port = random.randrange(_LOWEST_PORT, ephemeral) if ephemeral > _LOWEST_PORT else 0
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))  # and does not listen: nobody is to connect
            return int(probe.getsockname()[1])
    raise DemoError(f"no port between {_LOWEST_PORT} and {ephemeral} is free for the rendezvous of the job's ranks")


def _lowest_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768  # Linux's default
