"""What is wrong with the gate's own setup: it fails open, so that a mistake in it would pass every node in silence."""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.address import without_login
from laggard.agent.gate.drain_cap import ANSWER_SECONDS, NO_CAP
from laggard.agent.gate.slurm import Slurm, SlurmError
from laggard.wire import WireError, decode

NO_COLLECTOR: Final = (
    "no collector is named, so the gate rejects and drains nothing: set COLLECTOR in gate.conf (--collector URL), or "
    f"COLLECTOR={NO_CAP} for no cap on drains"
)
_NAMED_NODES: Final = 4


class _Node(msgspec.Struct, frozen=True):
    node: str | None


class _Nodes(msgspec.Struct, frozen=True):
    """What is needed of laggard.nodes/1."""

    nodes: tuple[_Node, ...]


def gate_problems(collector: str | None, node: str, slurm: Slurm | None) -> list[str]:
    """One line for each mistake; none where the gate can do its work. `node`: the name under which it judges. `slurm`:
    None where the gate asks nothing of SLURM."""
    problems = [NO_COLLECTOR] if not collector else []
    if collector and collector != NO_CAP:
        problems += _collector_problems(collector, node)
    return problems + (_slurm_problems(slurm) if slurm else [])


def _slurm_problems(slurm: Slurm) -> list[str]:
    try:
        slurm.show()
    except SlurmError as error:
        return [
            f"SLURM shows no node {slurm.node}: {error}; where slurm.conf is not at its default place, set SLURM_CONF "
            "in gate.conf"
        ]
    return []


def _collector_problems(collector: str, node: str) -> list[str]:
    from laggard.http.client import NoResponse, get  # sockets are slow to import

    try:
        rows = decode(get(f"{collector}/api/v1/nodes", ANSWER_SECONDS).body, _Nodes).nodes
    except (NoResponse, WireError) as error:
        return [
            f"the collector {without_login(collector)} does not answer: {error}; no node is rejected or drained while "
            "it is away"
        ]
    known = sorted(row.node for row in rows if row.node)
    if node in known:
        return []
    named = ", ".join(known[:_NAMED_NODES]) + (" ..." if len(known) > _NAMED_NODES else "")
    return [
        f"the collector {without_login(collector)} knows no node {node} (it knows: {named or 'none'}), so it is "
        f"neither rejected nor drained: the agent has to run here and to report as {node}; see `node` of its settings, "
        "and LAGGARD_NODE"
    ]
