"""The demo's nodes: network namespaces where the user is root, else separate loopback addresses."""

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
