"""This node as SLURM shows it, together with what the gate remembers of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from laggard.gate.memory import Evidence, NodeMemory, change_memory, load_memory, observed, with_first_look
from laggard.gate.settings import GateSettings
from laggard.gate.slurm import SlurmError, SlurmNode
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

_NO_BOOT: Final = "unknown boot"


class Seen(NamedTuple):
    """`node`: as SLURM shows it; None: SLURM gave no answer, and `error` says why. `problem`: why the memory cannot be
    kept; empty: it is."""

    node: SlurmNode | None
    memory: NodeMemory
    error: str = ""
    problem: str = ""


def remembered(settings: GateSettings, node: str) -> NodeMemory:
    """What the gate remembers of the node, without a question to SLURM. `node`: its name in reports."""
    return load_memory(settings.slurm_node(node).node, _boot_id(settings.subject.host))


def look(settings: GateSettings, node: str, evidence: Iterable[Evidence] = ()) -> Seen:
    """Asks SLURM for the node, and remembers what that says. `evidence`: what is critical on it now. Where SLURM gives
    no answer the memory stays as it is."""
    slurm = settings.slurm_node(node)
    asked_at = time.time()
    try:
        shown = slurm.show()
    except SlurmError as error:
        return Seen(None, remembered(settings, node), str(error))
    now = time.time()

    def change(memory: NodeMemory) -> NodeMemory:
        after = observed(memory, shown, asked_at, now)
        was_resumed = memory.seen_drained_at is not None and after.seen_drained_at is None
        return with_first_look(after, evidence) if shown.is_drained or was_resumed else after

    memory, problem = remember(settings, node, change)
    return Seen(shown, memory, problem=problem)


def remember(settings: GateSettings, node: str, change: Callable[[NodeMemory], NodeMemory]) -> tuple[NodeMemory, str]:
    """The memory after `change`, and why it cannot be kept; empty: it is kept."""
    name, boot_id = settings.slurm_node(node).node, _boot_id(settings.subject.host)
    try:
        return change_memory(name, boot_id, change), ""
    except Unknown as error:
        return change(load_memory(name, boot_id)), str(error)


def _boot_id(host: Host) -> str:
    """Of the machine that is judged."""
    try:
        return host.boot_id()
    except Unknown:
        return _NO_BOOT
