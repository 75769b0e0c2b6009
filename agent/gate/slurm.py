"""This node as SLURM has it: asked, drained and resumed through scontrol, which gets words and never a shell's line.

What is not certainly ours to change is left alone: a reason that somebody else gave, and a node that is down, boots,
is powered off, is planned for a job or is reserved for maintenance.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import subprocess

SCONTROL: Final = "/usr/bin/scontrol"
PREFIX: Final = "laggard:"
SECONDS: Final = 3.0

_GRACE_SECONDS: Final = 0.2
_BASE: Final = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_FLAGS: Final = frozenset({"DRAIN", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "RESERVED"})
_STATE: Final = re.compile(r"^ +State=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^ +Reason=(.*?)(?: \[\S+@\S+\])?$", re.MULTILINE)


class SlurmError(Exception):
    """SLURM gave no answer, or refused. The text says why."""


class Node(NamedTuple):
    """A node's state, as its base and its flags, and the reason that stands with it."""

    base: str
    flags: frozenset[str]
    reason: str

    @property
    def drained(self) -> bool:
        """Also while a job still runs there."""
        return "DRAIN" in self.flags

    @property
    def ours(self) -> bool:
        return self.reason.startswith(PREFIX)

    @property
    def may_be_changed(self) -> bool:
        return self.base in _BASE and self.flags <= _FLAGS

    @property
    def state(self) -> str:
        return "+".join((self.base, *sorted(self.flags)))


class Slurm:
    """`node`: the name that SLURM knows this machine under."""

    def __init__(self, node: str, scontrol: str = SCONTROL, seconds: float = SECONDS) -> None:
        self.node = node
        self._scontrol = scontrol
        self._seconds = seconds

    def drain(self, reason: str) -> str:
        """Drain the node, where that is ours to do. Returns what was done. Raises SlurmError."""
        node = self._look()
        if node.drained:
            return f"{self.node} is drained already: {node.reason}"
        if node.reason and not node.ours:
            return f"{self.node} was left alone, it has a reason of somebody else's: {node.reason}"
        if not node.may_be_changed:
            return f"{self.node} was left alone, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=DRAIN", f"Reason={reason}")
        return f"{self.node} was drained"

    def resume(self) -> str:
        """Resume the node where laggard drained it. Returns what was done, or nothing. Raises SlurmError."""
        node = self._look()
        if not node.drained or not node.ours:
            return ""
        if not node.may_be_changed:
            return f"{self.node} was not resumed, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=RESUME")
        return f"{self.node} was resumed, it had been drained for: {node.reason}"

    def _look(self) -> Node:
        return parse_node(self._run("show", "node", self.node))

    def _run(self, *words: str) -> str:
        return _run((self._scontrol, *words), self._seconds)


def parse_node(text: str) -> Node:
    """One node as `scontrol show node` prints it. Raises SlurmError."""
    state, reason = _STATE.findall(text), _REASON.findall(text)
    if len(state) != 1 or not text.startswith("NodeName="):
        raise SlurmError("scontrol shows no node")
    base, *flags = state[0].replace("*", "+NOT_RESPONDING").split("+")
    return Node(base, frozenset(flags), reason[0] if reason else "")


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """Kill it and whatever it started, and wait for none of them that does not die."""
    from subprocess import TimeoutExpired

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(TimeoutExpired):
        process.wait(_GRACE_SECONDS)


def _run(command: Sequence[str], seconds: float) -> str:
    """Its output. It is not waited for longer than `seconds`: slurmctld may be away for minutes."""
    import subprocess  # a tenth of the gate's start, and hardly ever wanted

    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise SlurmError(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        output, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _give_up(process)
        raise SlurmError(f"{command[0]} {command[1]} did not answer within {seconds:g} s") from None
    if process.returncode:
        words = complaint.decode(errors="replace").split()
        raise SlurmError(f"{command[0]} {command[1]}: {' '.join(words) or f'exit status {process.returncode}'}")
    return output.decode(errors="replace")
