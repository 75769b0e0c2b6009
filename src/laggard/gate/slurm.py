"""Reads, drains and resumes this node in SLURM through scontrol, which is run without a shell.

A node is left alone unless it is certainly laggard's to change: not where somebody else gave a reason, and not where
the node is down, boots, is powered off, is planned for a job or is reserved for maintenance.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from laggard.gate.time_limit import seconds_left

if TYPE_CHECKING:
    import subprocess

SCONTROL: Final = "/usr/bin/scontrol"
PREFIX: Final = "laggard:"
SECONDS: Final = 3.0

_GRACE_SECONDS: Final = 0.2
_BASE: Final = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_FLAGS: Final = frozenset({"DRAIN", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "RESERVED"})
_STATE: Final = re.compile(r"^ +State=(\S+)", re.MULTILINE)
_NOT_FOUND: Final = re.compile(r"\bNode \S+ not found\b")
_REASON: Final = re.compile(r"^ +Reason=(.*?)(?: \[\S+@\S+\])?$", re.MULTILINE)


class SlurmError(Exception):
    """SLURM gave no answer, or refused. The message says why."""


class NoProgram(SlurmError):
    """scontrol cannot be run."""


class NoSuchNode(SlurmError):
    """SLURM answers, and has no node of that name."""


class SlurmNode(NamedTuple):
    """A node's state, in its base and its flags, and the reason that was given for it."""

    base: str
    flags: frozenset[str]
    reason: str

    @property
    def is_drained(self) -> bool:
        """Whether it takes no more jobs. One may still run there."""
        return "DRAIN" in self.flags

    @property
    def has_laggards_reason(self) -> bool:
        return self.reason.startswith(PREFIX)

    @property
    def may_change(self) -> bool:
        return self.base in _BASE and self.flags <= _FLAGS

    @property
    def state(self) -> str:
        return "+".join((self.base, *sorted(self.flags)))


class Slurm:
    """Changes one node. `node`: its name in SLURM; `scontrol`: the program, which is run for SECONDS at most; `end`:
    the moment by which each run of it has ended (monotonic seconds)."""

    def __init__(self, node: str, scontrol: str = SCONTROL, end: float = math.inf) -> None:
        self.node = node
        self._scontrol = scontrol
        self._end = end

    def drain(self, reason: str) -> str:
        """Drains the node, unless it has to be left alone. Returns what was done. Raises SlurmError."""
        node = self.show()
        if node.is_drained and node.reason.split()[:2] == reason.split()[:2]:  # its figures change all the time
            return f"{self.node} is drained already, for that"
        if node.is_drained:
            return f"{self.node} is drained already: {node.reason}"
        if node.reason and not node.has_laggards_reason:
            return f"{self.node} was left alone, it has a reason of somebody else's: {node.reason}"
        if not node.may_change:
            return f"{self.node} was left alone, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=DRAIN", f"Reason={reason}")
        return f"{self.node} was drained"

    def resume(self) -> str:
        """Resumes the node where laggard drained it. Returns what was done, empty for nothing. Raises SlurmError."""
        node = self.show()
        if not node.is_drained or not node.has_laggards_reason:
            return ""
        if not node.may_change:
            return f"{self.node} was not resumed, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=RESUME")
        return f"{self.node} was resumed, it had been drained for: {node.reason}"

    def show(self) -> SlurmNode:
        """The node as SLURM shows it. Raises SlurmError."""
        return parse_node(self._run("show", "node", self.node))

    def config(self) -> dict[str, str]:
        """SLURM's configuration, as slurmctld has it: values by name. Raises SlurmError."""
        return parse_config(self._run("show", "config"))

    def _run(self, *words: str) -> str:
        seconds = seconds_left(self._end, SECONDS)
        if not seconds:
            raise SlurmError(f"no time was left for {self._scontrol} {words[0]}")
        return _run((self._scontrol, *words), seconds)


def parse_config(text: str) -> dict[str, str]:
    """Parses what `scontrol show config` prints: a line `Name = value` for each."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def parse_node(text: str) -> SlurmNode:
    """Parses the node that `scontrol show node` prints. Raises SlurmError where it is not exactly one."""
    state, reason = _STATE.findall(text), _REASON.findall(text)
    if len(state) != 1 or not text.startswith("NodeName="):
        raise SlurmError("scontrol shows no node")
    base, *flags = state[0].replace("*", "+NOT_RESPONDING").split("+")
    return SlurmNode(base, frozenset(flags), reason[0] if reason else "")


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """Kills the process, and waits for none that does not die. It is of this gate's process group, which gate.sh ends:
    whatever becomes of the gate, no scontrol outlives the script and drains the node later."""
    from subprocess import TimeoutExpired

    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(TimeoutExpired):
        process.wait(_GRACE_SECONDS)


def _run(command: Sequence[str], seconds: float) -> str:
    """Returns the output of `command`, within `seconds`: slurmctld may be away for minutes. Raises SlurmError."""
    import subprocess  # a tenth of the gate's start, and rarely needed

    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise NoProgram(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _give_up(process)
        raise SlurmError(f"{command[0]} {command[1]} did not answer within {seconds:.2g} s") from None
    if process.returncode:
        said = " ".join((errors or output).decode(errors="replace").split())
        kind = NoSuchNode if _NOT_FOUND.search(said) else SlurmError
        raise kind(f"{command[0]} {command[1]}: {said or f'exit status {process.returncode}'}")
    return output.decode(errors="replace")
