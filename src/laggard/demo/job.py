"""The demo's training job, its nodes and its processes: which rank is slowed, where each runs, and how all end with
the demo."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from laggard.kit.errors import UsageError

_PREFIX = "laggard"
_BRIDGE_PATTERN = re.compile(rf"{_PREFIX}(\d+)")


class DemoNode(NamedTuple):
    """One node: how to start a command on it, and its address for the other nodes."""

    name: str
    address: str
    interface: str  # to which gloo should bind
    command_prefix: tuple[str, ...]  # words to put before a command


@contextlib.contextmanager
def create_nodes(count: int) -> Iterator[tuple[DemoNode, ...]]:
    """Creates `count` nodes, and removes them and their network afterwards."""
    bridge = f"{_PREFIX}{os.getpid()}"
    try:
        yield _namespaces_if_allowed(bridge, count) or _loopback(count)
    finally:
        _remove(bridge)


def _namespaces_if_allowed(bridge: str, count: int) -> tuple[DemoNode, ...] | None:
    """None where this user may not create namespaces: not root, or a container without CAP_NET_ADMIN and
    CAP_SYS_ADMIN."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return None
    _remove_leftovers()
    try:
        return _namespaces(bridge, count)
    except subprocess.CalledProcessError:
        return None


def _loopback(count: int) -> tuple[DemoNode, ...]:
    return tuple(DemoNode(f"n{index}", f"127.0.1.{index + 1}", "lo", ()) for index in range(count))


def _namespaces(bridge: str, count: int) -> tuple[DemoNode, ...]:
    """Namespaces on one bridge, in a network of their own without a route to others."""
    _ip("link", "add", bridge, "type", "bridge")
    _ip("link", "set", bridge, "up")
    network = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    _ip("address", "add", f"{network}.254/24", "dev", bridge)
    return tuple(_namespace(bridge, f"{network}.{index + 1}", index) for index in range(count))


def _namespace(bridge: str, address: str, index: int) -> DemoNode:
    namespace, veth = f"{bridge}-n{index}", f"{bridge}v{index}"
    _ip("netns", "add", namespace)
    _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", veth, "master", bridge, "up")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    return DemoNode(f"n{index}", address, "eth0", ("ip", "netns", "exec", namespace))


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _remove(bridge: str) -> None:
    """Removes the bridge, its links and its namespaces, as far as they exist. The kernel would remove a veth pair with
    its namespace too, but only some time later."""
    links = [entry.name for entry in Path("/sys/class/net").iterdir() if entry.name.startswith(f"{bridge}v")]
    namespaces = [entry.name for entry in Path("/run/netns").glob(f"{bridge}-*")]
    deletions = [("link", "delete", link) for link in (*links, bridge)]
    deletions += [("netns", "delete", namespace) for namespace in namespaces]
    for words in deletions:
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            _ip(*words)


def _remove_leftovers() -> None:
    """Removes what killed demos have left behind."""
    for entry in Path("/sys/class/net").iterdir():
        found = _BRIDGE_PATTERN.fullmatch(entry.name)
        if found and not Path("/proc", found[1]).exists():
            _remove(entry.name)


LAGGARD = (sys.executable, "-m", "laggard")


class DemoError(Exception):
    """A part of the demo failed. The text says which part and why."""


class Processes:
    """Starts commands under a name each. Use it as a context manager: leaving it ends them all."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for kill in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, kill)
            self._wait(3.0)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def start(
        self, name: str, command: Sequence[str], node: DemoNode | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        """Starts `command` on `node` (None: on this machine), with `extra` added to its environment."""
        with open(self.logs / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                [*(node.command_prefix if node else ()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(extra or {})},
            )

    def output(self, name: str) -> str:
        """Everything that the process has written so far, to standard output and standard error."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def wait_for_url(self, name: str, seconds: float = 120.0) -> str:
        """Waits for a daemon to log the URL on which it listens, and returns that. Raises DemoError where the daemon
        ends before, or takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(r"listening on (http\S+)", self.output(name))
            if found:
                return found[1]
            if self._running[name].poll() is not None:
                break
            time.sleep(0.05)
        raise DemoError(f"the {name} did not start: {self.last_line(name)}")

    def all_finished(self, names: Sequence[str]) -> bool:
        """Whether all of these processes have ended. Raises DemoError for one that ended with an error."""
        for name in names:
            status = self._running[name].poll()
            if status not in (None, 0):
                raise DemoError(f"{name} ended with status {status}: {self.last_line(name)}")
        return all(self._running[name].poll() == 0 for name in names)

    def check_running(self, *names: str) -> None:
        """Raises DemoError where one of these daemons has ended."""
        for name in names:
            status = self._running[name].poll()
            if status is not None:
                raise DemoError(f"the {name} ended with status {status}: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        """The last line that the process has written."""
        lines = [line for line in self.output(name).splitlines() if line.strip()]
        return lines[-1] if lines else "without any output"


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
