"""What is wrong with the gate's own setup: it fails open, so that a mistake in it would pass every node in silence."""

from __future__ import annotations

import errno
import os
from typing import Final

import msgspec

from laggard.address import without_login
from laggard.constants import AGENT_PORT, COLLECTOR_PORT
from laggard.gate.settings import COLLECTOR_SECONDS, NO_CAP
from laggard.gate.slurm import SECONDS, NoProgram, NoSuchNode, Slurm, SlurmError
from laggard.gate.time_limit import TimeLimit
from laggard.wire import WireError, decode
from laggard.wire.nodes import DrainsDocument

NO_COLLECTOR: Final = (
    "no collector is named, so the gate rejects and drains nothing: set COLLECTOR in gate.conf (--collector URL), or "
    f"COLLECTOR={NO_CAP} for no cap on drains"
)
CHECK_SECONDS: Final = COLLECTOR_SECONDS + SECONDS
"""The time that gate_problems() may take."""

_NAMED_NODES: Final = 4


class _Node(msgspec.Struct, frozen=True):
    node: str | None


class _Nodes(msgspec.Struct, frozen=True):
    """What is needed of laggard.nodes/1."""

    nodes: tuple[_Node, ...]


def gate_problems(collector: str | None, node: str, slurm: Slurm | None, limit: TimeLimit) -> list[str]:
    """One line for each mistake; none where the gate can do its work. `node`: the name under which it judges. `slurm`:
    None where the gate asks nothing of SLURM."""
    problems = [NO_COLLECTOR] if not collector else []
    if collector and collector != NO_CAP:
        problems += _collector_problems(collector, node, limit.to_decide(COLLECTOR_SECONDS))
    return problems + (_slurm_problems(slurm) if slurm else [])


def _slurm_problems(slurm: Slurm) -> list[str]:
    try:
        slurm.show()
    except NoProgram as error:
        return [f"{error}; where scontrol is elsewhere, set SCONTROL in gate.conf"]
    except NoSuchNode as error:
        return [
            f"SLURM has no node {slurm.node}: {error}; where its NodeName is another, add --slurm-node NAME to FLAGS "
            "in gate.conf"
        ]
    except SlurmError as error:
        return [
            f"SLURM shows no node {slurm.node}: {error}; where slurm.conf is not at its default place, set SLURM_CONF "
            "in gate.conf"
        ]
    return []


def _collector_problems(collector: str, node: str, seconds: float) -> list[str]:
    from laggard.http.client import NoResponse, get  # sockets are slow to import

    try:
        rows = decode(get(f"{collector}/api/v1/nodes", seconds).body, _Nodes).nodes
    except NoResponse as error:
        return [
            f"the collector {without_login(collector)} does not answer: {error}{_hint(str(error))}; no node is "
            "rejected or drained while it is away"
        ]
    except WireError as error:
        return [f"{without_login(collector)} is no collector: {error}; no node is rejected or drained"]
    known = sorted(row.node for row in rows if row.node)
    if node in known:
        return []
    named = ", ".join(known[:_NAMED_NODES]) + (" ..." if len(known) > _NAMED_NODES else "")
    return [
        f"the collector {without_login(collector)} knows no node {node} (it knows: {named or 'none'}), so it is "
        f"neither rejected nor drained: the agent has to run here and to report as {node}; see `node` of its settings, "
        "and LAGGARD_NODE; or the collector does not ask it: `targets` in collector.yaml"
    ]


def _hint(error: str) -> str:
    if error == os.strerror(errno.ECONNREFUSED):
        return "; is it up, and does its `listen_address` reach other machines (default: 127.0.0.1)?"
    if error.startswith("HTTP 404"):
        return f": this is no collector, whose port is {COLLECTOR_PORT} by default; an agent's is {AGENT_PORT}"
    return ""


def cap_words(collector: str, node: str, limit: TimeLimit) -> str:
    """How many nodes may be drained, as `cap 1 of 3`."""
    if collector == NO_CAP:
        return "no cap"
    from urllib.parse import quote

    from laggard.http.client import NoResponse, get

    url = f"{collector}/api/v1/drains?node={quote(node, safe='')}"
    try:
        answer = decode(get(url, limit.to_decide(COLLECTOR_SECONDS)).body, DrainsDocument)
    except (NoResponse, WireError):
        return "cap not known"
    return f"cap {answer.cap} of {answer.answering}"
