"""What is wrong with the gate's own setup: it fails open, so that a mistake in it would pass every node in silence."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from laggard.gate.flags import OwnFlags, parse_own_flags
from laggard.gate.settings import COLLECTOR_SECONDS, ENFORCE, MODES, NO_CAP, GateConf, GateSettings
from laggard.gate.slurm import SECONDS, NoProgram, NoSuchNode, NotReached, Slurm, SlurmError
from laggard.gate.slurm_config import config_problems
from laggard.gate.time_limit import TimeLimit
from laggard.kit.address import without_login
from laggard.kit.constants import AGENT_PORT, COLLECTOR_PORT
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.probes.host.host import open_host
from laggard.wire import WireError, decode
from laggard.wire.nodes import DrainsDocument

NO_COLLECTOR: Final = (
    "no collector is named, so the gate rejects and drains nothing: set COLLECTOR in gate.conf (--collector URL), or "
    f"COLLECTOR={NO_CAP} for no cap on drains"
)
SLURM_AWAY: Final = "slurmctld does not answer"
"""Begins the line about a SLURM that is away, which is no mistake of the setup."""
AGENT_CONFIG: Final = "/etc/laggard/agent.yaml"
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
    except NotReached as error:
        return [f"{SLURM_AWAY}: {error}; no node is drained or resumed while it is away"]
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
    from laggard.kit.http_client import NoResponse, get  # sockets are slow to import

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

    from laggard.kit.http_client import NoResponse, get

    url = f"{collector}/api/v1/drains?node={quote(node, safe='')}"
    try:
        answer = decode(get(url, limit.to_decide(COLLECTOR_SECONDS)).body, DrainsDocument)
    except (NoResponse, WireError):
        return "cap not known"
    return f"cap {answer.cap} of {answer.answering}"


# `--check-gate` alone: whether the gate is set up. A prolog that laggard refuses to run for its flags passes every job,
# and so does one whose collector or SLURM does not know the node.


def setup_lines(settings: GateSettings, conf: GateConf) -> tuple[list[Line], bool]:
    """What is wrong with the gate's setup, or what the gate does; and whether all is well. Raises UsageError where
    FLAGS of gate.conf name a recorded machine that is not there."""
    own, problems = _own_flags(conf.flags)
    settings = settings._replace(slurm=settings.slurm._replace(node=settings.slurm.node or own.slurm_node))
    host = settings.subject.host
    node = (open_host(own.host_root) if own.host_root and not host.recorded else host).node()
    slurm = settings.slurm_node(node)
    problems = _mode_problems(conf.mode) + problems
    problems += gate_problems(settings.slurm.collector, node, slurm, settings.limit)
    problems += config_problems(slurm, conf)
    lines = [Line(f"gate: {problem}", "critical") for problem in problems]
    if settings.is_switched_off:
        off = f"gate: switched off by {settings.kill_switch}: remove the file to switch the gate on"
        lines.append(Line(off, "critical"))
    elif not problems:
        lines.append(Line(_set_up(settings, conf.mode, node, slurm.node), "ok"))
    if own.expect and settings.slurm.collector != NO_CAP and own.expect not in host.text(AGENT_CONFIG):
        told = f"gate: FLAGS has --expect {own.expect}, and {AGENT_CONFIG} has another `profile`"
        lines.append(Line(f"{told}: what the agent does not find, no node is drained for", "warning"))
    return lines, not problems and not settings.is_switched_off


def _set_up(settings: GateSettings, gate_mode: str | None, node: str, slurm_node: str) -> str:
    """What the gate does, and who knows this node."""
    collector = settings.slurm.collector
    mode = f", {gate_mode}" if gate_mode else ""
    if collector is None or collector == NO_CAP:
        return f"gate: set up{mode}: SLURM knows {slurm_node}; no cap"
    cap = f", {cap_words(collector, node, settings.limit)}" if gate_mode == ENFORCE else ""
    return f"gate: set up{mode}{cap}: the collector and SLURM know {node}"


def _mode_problems(mode: str | None) -> list[str]:
    """`mode`: MODE of gate.conf; None: not known."""
    if mode is None or mode in MODES:
        return []
    return [f"MODE of gate.conf is {mode!r}, with which every job passes: set it to {' or '.join(MODES)}"]


def _own_flags(words: Sequence[str]) -> tuple[OwnFlags, list[str]]:
    """What FLAGS of gate.conf ask for, and what is wrong with them."""
    try:
        return parse_own_flags(words), []
    except UsageError as error:
        form = (
            "; each word is an element of its own: FLAGS=(--skip PROBE)" if any(" " in word for word in words) else ""
        )
        told = f"FLAGS of gate.conf are no flags of `laggard healthcheck`, so that every job passes: {error}{form}"
        return OwnFlags(), [told]
