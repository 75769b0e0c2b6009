"""What is wrong with the gate's own setup: it fails open, so that a mistake in it would pass every node in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from laggard.address import without_login
from laggard.agent.gate.drain_cap import ANSWER_SECONDS, NO_CAP
from laggard.agent.gate.slurm import SECONDS, Slurm, SlurmError
from laggard.agent.gate.time_limit import TimeLimit
from laggard.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.wire import WireError, decode

NO_COLLECTOR: Final = (
    "no collector is named, so the gate rejects and drains nothing: set COLLECTOR in gate.conf (--collector URL), or "
    f"COLLECTOR={NO_CAP} for no cap on drains"
)
CHECK_SECONDS: Final = ANSWER_SECONDS + SECONDS
"""The time that gate_problems() may take."""

_NAMED_NODES: Final = 4
_NO_TIMEOUT: Final = 65534
"""SLURM prints this 16-bit NO_VAL for a timeout that is not set: it then waits for ever."""

_HEALTH_CHECK_SECONDS: Final = 60
"""After which slurmd kills HealthCheckProgram (slurm.conf(5))."""

_MARGIN_SECONDS: Final = 5
_PRIVATE: Final = ("JobContainerType", "NamespaceType")
"""SLURM's setting that gives jobs directories of their own, and its name in newer versions."""

_GANG_SCRIPT: Final = "prolog-gang.sh"


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
        problems += _collector_problems(collector, node, limit.to_decide(ANSWER_SECONDS))
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


def _collector_problems(collector: str, node: str, seconds: float) -> list[str]:
    from laggard.http.client import NoResponse, get  # sockets are slow to import

    try:
        rows = decode(get(f"{collector}/api/v1/nodes", seconds).body, _Nodes).nodes
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


def config_problems(slurm: Slurm, gate_seconds: int | None, gang_seconds: int | None) -> list[str]:
    """What in SLURM's configuration does not go with gate.conf or with this node. `gate_seconds`, `gang_seconds`: the
    limits of the scripts, of gate.conf; None: not known. Where SLURM does not answer there is none: gate_problems()
    tells of that."""
    try:
        config = slurm.config()
    except SlurmError:
        return []
    limits = _limit_problems(config, gate_seconds, gang_seconds) if gate_seconds else []
    return [*limits, *_rank_problems(config)]


def _rank_problems(config: Mapping[str, str]) -> list[str]:
    """Whether jobs write their rank files where no agent sees them: into a /dev/shm of their own."""
    private = [
        f"{name}={config[name]}" for name in _PRIVATE if config.get(name, "").rpartition("/")[2] in ("tmpfs", "linux")
    ]
    if not private or os.path.isdir(SHARED_RANK_DIR):
        return []
    return [
        f"there is no {SHARED_RANK_DIR}, and {private[0]} gives each job a {FALLBACK_RANK_DIR} of its own, so that the "
        "agent sees no ranks: install deploy/systemd/tmpfiles.d/laggard.conf and run `systemd-tmpfiles --create`"
    ]


def _limit_problems(config: Mapping[str, str], gate_seconds: int, gang_seconds: int | None) -> list[str]:
    """One line for each script that SLURM would kill before its own limit, and then drain the node."""
    prolog = ", ".join(value for name, value in config.items() if name.partition("[")[0] == "Prolog")
    setting, seconds = "GATE_SECONDS", gate_seconds
    if gang_seconds and _GANG_SCRIPT in prolog:
        setting, seconds = "GANG_SECONDS", gang_seconds
    problems = [
        f"{name} of slurm.conf is {limit} s, after which SLURM kills the {script} and drains the node, while gate.conf "
        f"gives it {own}={most} s: set {name} to {_above(most)} or more, or lower {own}"
        for name, script, own, most in (
            ("PrologEpilogTimeout", "prolog", setting, seconds),
            ("PrologTimeout", "prolog", setting, seconds),
            ("EpilogTimeout", "epilog", "GATE_SECONDS", gate_seconds),
        )
        if (limit := _timeout(config.get(name, ""))) is not None and limit < _above(most)
    ]
    if _above(gate_seconds) > _HEALTH_CHECK_SECONDS:
        problems.append(
            f"GATE_SECONDS of gate.conf is {gate_seconds} s, and SLURM kills HealthCheckProgram after "
            f"{_HEALTH_CHECK_SECONDS} s: set it to {_HEALTH_CHECK_SECONDS - _MARGIN_SECONDS} or less"
        )
    return problems


def _above(seconds: int) -> int:
    """SLURM's limit for a script that takes `seconds`: a busy node starts and ends it late."""
    return seconds + _MARGIN_SECONDS


def _timeout(value: str) -> int | None:
    """The seconds of a timeout in SLURM's configuration; None where SLURM waits for ever."""
    number = value.partition(" ")[0]
    if not (number.isascii() and number.isdecimal() and len(number) < 8):
        return None
    return int(number) if 0 < int(number) < _NO_TIMEOUT else None
