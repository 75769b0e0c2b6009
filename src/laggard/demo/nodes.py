"""The demo's machines: network namespaces where we are root, else separate loopback addresses."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PREFIX = "laggard"
_BRIDGE_PATTERN = re.compile(rf"{_PREFIX}(\d+)")


class Node(NamedTuple):
    """One machine: how to start a command on it, and where it can be reached from the others."""

    name: str
    address: str
    interface: str  # what gloo should bind to
    enter: tuple[str, ...]  # words to put before a command


@contextlib.contextmanager
def machines(count: int) -> Iterator[tuple[Node, ...]]:
    """`count` nodes; what was made for them is gone afterwards."""
    bridge = f"{_PREFIX}{os.getpid()}"
    try:
        yield _namespaces_if_allowed(bridge, count) or _loopback(count)
    finally:
        _remove(bridge)


def _namespaces_if_allowed(bridge: str, count: int) -> tuple[Node, ...] | None:
    """None where we may not make any: not root, or a container without CAP_NET_ADMIN and CAP_SYS_ADMIN."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return None
    _remove_left_overs()
    try:
        return _namespaces(bridge, count)
    except subprocess.CalledProcessError:
        return None


def _loopback(count: int) -> tuple[Node, ...]:
    return tuple(Node(f"n{index}", f"127.0.1.{index + 1}", "lo", ()) for index in range(count))


def _namespaces(bridge: str, count: int) -> tuple[Node, ...]:
    """Namespaces on one bridge, in a network of their own that is routed nowhere."""
    _ip("link", "add", bridge, "type", "bridge")
    _ip("link", "set", bridge, "up")
    network = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    _ip("address", "add", f"{network}.254/24", "dev", bridge)
    return tuple(_namespace(bridge, f"{network}.{index + 1}", index) for index in range(count))


def _namespace(bridge: str, address: str, index: int) -> Node:
    space, outside = f"{bridge}-n{index}", f"{bridge}v{index}"
    _ip("netns", "add", space)
    _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
    _ip("link", "set", outside, "master", bridge, "up")
    _ip("-n", space, "link", "set", "lo", "up")
    _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")
    return Node(f"n{index}", address, "eth0", ("ip", "netns", "exec", space))


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _remove(bridge: str) -> None:
    """Takes down the bridge, its links and namespaces, whatever of them there is. A veth pair would go with its
    namespace, but some time after."""
    links = [entry.name for entry in Path("/sys/class/net").iterdir() if entry.name.startswith(f"{bridge}v")]
    spaces = [entry.name for entry in Path("/run/netns").glob(f"{bridge}-*")]
    removals = [("link", "delete", link) for link in (*links, bridge)] + [("netns", "delete", each) for each in spaces]
    for words in removals:
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            _ip(*words)


def _remove_left_overs() -> None:
    """Takes down what demos that were killed could not."""
    for entry in Path("/sys/class/net").iterdir():
        found = _BRIDGE_PATTERN.fullmatch(entry.name)
        if found and not Path("/proc", found[1]).exists():
            _remove(entry.name)
