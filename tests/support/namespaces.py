"""Nodes in network namespaces, whose links have a rate: a cluster's network on one machine. Needs root and iproute2.

Each node has a veth to a namespace in the middle, which routes. A token bucket (tbf) at both ends gives it its rate in
both directions. A slow link between two nodes is a veth of their own, which only their traffic to each other takes.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any


class Namespaces:
    """`count` nodes, and a with statement around their life. `rate` as tc writes it (`200mbit`)."""

    _numbers = itertools.count()

    def __init__(self, count: int, rate: str) -> None:
        self.count, self.rate = count, rate
        self._prefix = f"lg{os.getpid() % 100000}x{next(self._numbers)}"

    def __enter__(self) -> Namespaces:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, node: int) -> str:
        return f"10.77.{node}.2"

    def path(self, node: int) -> str:
        """The file of a node's namespace, for enter()."""
        return f"/run/netns/{self._node(node)}"

    def start(self, node: int, command: Sequence[str], environ: Mapping[str, str], **how: Any) -> subprocess.Popen[str]:
        """Starts a process in the namespace of a node."""
        return subprocess.Popen([*self.enter(node), *command], env={**os.environ, **environ}, text=True, **how)

    def enter(self, node: int) -> tuple[str, ...]:
        """The words before a command that run it in the namespace of a node."""
        return ("ip", "netns", "exec", self._node(node))

    def shape(self, node: int, rate: str) -> None:
        """Gives a node's link another rate, in both directions."""
        _tc(self._node(node), "eth0", rate)
        _tc(self._hub, f"n{node}", rate)

    def shape_link(self, one: int, other: int, rate: str) -> None:
        """Gives the two nodes a link of their own, of this rate."""
        ends = (self._node(one), f"to{other}", other), (self._node(other), f"to{one}", one)
        (first, name, _), (second, peer, _) = ends
        _ip("link", "add", name, "netns", first, "type", "veth", "peer", "name", peer, "netns", second)
        for space, device, target in ends:
            _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "route", "add", f"{self.address(target)}/32", "dev", device)
            _tc(space, device, rate)

    def cut(self, node: int) -> None:
        """Takes a node's cable out: no connection is closed."""
        _ip("-n", self._hub, "link", "set", f"n{node}", "down")

    def sent_bytes(self, node: int) -> int:
        """What a node has sent over its link so far."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        shown = subprocess.run(
            ["ip", "netns", "exec", self._node(node), "cat", path], capture_output=True, text=True, check=True
        )
        return int(shown.stdout)

    @property
    def _hub(self) -> str:
        return f"{self._prefix}hub"

    def _node(self, node: int) -> str:
        return f"{self._prefix}n{node}"

    def _make(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "set", "lo", "up")
        _ip("netns", "exec", self._hub, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for node in range(self.count):
            space = self._node(node)
            _ip("netns", "add", space)
            _ip("link", "add", f"n{node}", "netns", self._hub, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._hub, "address", "add", f"10.77.{node}.1/24", "dev", f"n{node}")
            _ip("-n", space, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", self._hub, "link", "set", f"n{node}", "up")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "route", "add", "default", "via", f"10.77.{node}.1")
            self.shape(node, self.rate)

    def _remove(self) -> None:
        for space in (*map(self._node, range(self.count)), self._hub):
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL)


def can_make() -> bool:
    """Whether this process may make namespaces: as root, with iproute2. Others may ask at the same time."""
    name = f"try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True) if os.geteuid() == 0 else None
    if done is None or done.returncode:
        return False
    return subprocess.run(["ip", "netns", "delete", name]).returncode == 0


def enter(path: str) -> None:
    """Moves this thread to the network namespace of that file. What is mounted stays as it is, unlike with ip."""
    with open(path) as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _tc(space: str, device: str, rate: str) -> None:
    command = ["ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", device, "root"]
    subprocess.run([*command, "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"], check=True)
