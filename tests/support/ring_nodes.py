"""Nodes of a ring or a gang, which are processes here."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil

Node = subprocess.Popen[str]


@contextlib.contextmanager
def ring_nodes() -> Iterator[Callable[..., Node]]:
    """Gives what starts a node: of its number, of so many nodes, that meet there, for a command of laggard. They are
    killed in the end."""
    nodes: list[Node] = []

    def start(number: int, count: int, meet: str, command: str, *words: str) -> Node:
        place = ("--rendezvous", meet, "--nodes", str(count), "--node-rank", str(number))
        line = [sys.executable, "-m", "laggard", command, *place, *words]
        environ = {**os.environ, "LAGGARD_NODE": f"n{number}", "OMP_NUM_THREADS": "1"}
        nodes.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()
        node.communicate()


def workers_of(node: Node) -> list[psutil.Process]:
    return psutil.Process(node.pid).children(recursive=True)
