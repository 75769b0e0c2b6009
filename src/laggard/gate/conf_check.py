"""`--check-gate` alone: whether the gate is set up. A prolog that laggard refuses to run for its flags passes every
job, and so does one whose collector or SLURM does not know the node."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.errors import UsageError
from laggard.gate.flags import OwnFlags, parse_own_flags
from laggard.gate.self_check import cap_words, gate_problems
from laggard.gate.settings import ENFORCE, MODES, NO_CAP, GateConf, GateSettings
from laggard.gate.slurm_config import config_problems
from laggard.probes.host.host import open_host
from laggard.terminal.parts import Line


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
