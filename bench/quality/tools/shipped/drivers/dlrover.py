"""DLRover's check of the nodes, by the manager that its master ships: nodes join, are paired, and report how long they
took; after each round it is asked for the stragglers, and a second round, in which the fast are paired with the slow,
follows where there are any, as its agent has it with --exclude-straggler. The pair's all_reduce takes as long as that
of its slower node. It runs before a job; what the nodes took is from the job."""

from __future__ import annotations

import os
from typing import Any

os.environ["DLROVER_EVENT_EVENT_EXPORTER"] = "CONSOLE"  # else it leaves files in /tmp

from dlrover.python.common.constants import NodeType
from dlrover.python.common.node import Node
from dlrover.python.master.elastic_training.rdzv_manager import NetworkCheckRendezvousManager

ROUNDS = 2
MIN_NODES_OF_TWO_ROUNDS = 4
"""With fewer its agent makes no second round; what it found in the first counts here."""


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """`nodes`: of each `ranks`, `computing_ms` and `transfer_ms`."""
    nodes = request["nodes"]
    manager = NetworkCheckRendezvousManager()
    manager.update_rdzv_params(len(nodes), len(nodes), 60, 1)
    for number in range(len(nodes)):
        manager.add_alive_node(Node(NodeType.WORKER, number))
    slow: list[int] = []
    for _ in range(ROUNDS):
        slow = checked(manager, nodes)
        if not slow or len(nodes) < MIN_NODES_OF_TWO_ROUNDS:
            break
    return [{"kind": "slow_node", "ranks": nodes[number]["ranks"]} for number in sorted(slow)]


def checked(manager: NetworkCheckRendezvousManager, nodes: list[dict[str, Any]]) -> list[int]:
    """The stragglers after one round."""
    for number, node in enumerate(nodes):
        manager.join_rendezvous(number, number, len(node["ranks"]))
    pairs = {number: list(manager.get_comm_world(number)[2]) for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        transfer = max(nodes[other]["transfer_ms"] for other in pairs[number])
        manager.report_network_check_result(number, True, round(node["computing_ms"] + transfer, 3))
    manager.check_fault_node()
    found, _ = manager.get_straggler()
    return [int(number) for number in found]
