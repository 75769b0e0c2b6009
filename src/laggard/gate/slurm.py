"""Reads, drains and resumes this node in SLURM through scontrol, which is run without a shell.

A node is left alone unless it is certainly laggard's to change: not where somebody else gave a reason, and not where
the node is down, boots, is powered off, is planned for a job or is reserved for maintenance. A reason that somebody has
extended is theirs: laggard's own ends with a mark that is made of its words.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from laggard.gate.time_limit import seconds_left
from laggard.wire.words import HEADLINE_LENGTH

if TYPE_CHECKING:
    import subprocess

SCONTROL: Final = "/usr/bin/scontrol"
PREFIX: Final = "laggard:"
SECONDS: Final = 3.0

_GRACE_SECONDS: Final = 0.2
_BASE: Final = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_FLAGS: Final = frozenset({"DRAIN", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "RESERVED"})
# Texts, and not compiled: most gates read nothing of SLURM, and start sooner.
_STATE: Final = r"(?m)^ +State=(\S+)"
_NOT_FOUND: Final = r"\bNode \S+ not found\b"
_NOT_REACHED: Final = r"(?i)Unable to contact slurm controller|Zero Bytes were transmitted|Socket timed out"
"""The errors of slurmctld that is down or does not answer (src/common/slurm_errno.c)."""
_LAST_BUSY: Final = r"(?m)^ +LastBusyTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: |$)"
_MARKED: Final = r"(.*) #([0-9a-f]{4})"
_TIMES_IN_UTC: Final = {"TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}
REASON_LENGTH: Final = HEADLINE_LENGTH - len(" #0000")
"""The most characters of a reason that own_reason() takes, so that with its mark it is as long as a first line."""
_REASON: Final = r"(?m)^ +Reason=(.*?)(?: \[\S+@\S+\])?$"


DRAINED: Final = "was drained"
RESUMED: Final = "was resumed, it had been drained for"
"""Stand in what drain() and resume() return where they changed the node."""
RESUMED_BY_HAND: Final = "was resumed by somebody: reports of before stand for nothing"
"""Is said where the gate finds so; deploy/slurm/gate.sh takes it for a change, as it does the two before."""


class SlurmError(Exception):
    """SLURM gave no answer, or refused. The message says why."""


class NoProgram(SlurmError):
    """scontrol cannot be run."""


class NotReached(SlurmError):
    """slurmctld is down, or does not answer in time. That is no mistake of the setup."""


class NoSuchNode(SlurmError):
    """SLURM answers, and has no node of that name."""


def own_reason(text: str) -> str:
    """The reason `text` as laggard gives it: with a mark behind it, by which it is known again."""
    return f"{text} #{_mark(text)}"


def is_own_reason(reason: str) -> bool:
    """Whether it is exactly what laggard wrote: nobody has changed it or added a word."""
    found = re.fullmatch(_MARKED, reason)
    return found is not None and reason.startswith(PREFIX) and found[2] == _mark(found[1])


def _mark(text: str) -> str:
    """Guards against words that were added, and against no attacker: who may write reasons may write any."""
    return f"{zlib.crc32(' '.join(text.split()).encode()) & 0xFFFF:04x}"


class SlurmNode(NamedTuple):
    """A node's state, in its base and its flags, and the reason that was given for it. `last_busy`: when it last ran a
    job, or was resumed, whichever came later, in Unix seconds; None: SLURM does not say."""

    base: str
    flags: frozenset[str]
    reason: str
    last_busy: float | None = None

    @property
    def is_drained(self) -> bool:
        """Whether it takes no more jobs. One may still run there."""
        return "DRAIN" in self.flags

    @property
    def has_laggards_reason(self) -> bool:
        return is_own_reason(self.reason)

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

    def drain(self, node: SlurmNode, reason: str) -> str:
        """Drains the node, which SLURM has just shown as `node`, unless it has to be left alone. Returns what was done.
        Raises SlurmError."""
        if node.is_drained and node.reason.split()[:3] == reason.split()[:3]:  # its figures change all the time
            return f"{self.node} is drained already, for that"
        if node.is_drained:
            return f"{self.node} is drained already: {node.reason}"
        if node.reason and not node.has_laggards_reason:
            return f"{self.node} was left alone, it has a reason of somebody else's: {node.reason}"
        if not node.may_change:
            return f"{self.node} was left alone, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=DRAIN", f"Reason={own_reason(reason)}")
        return f"{self.node} {DRAINED}"

    def resume(self, node: SlurmNode) -> str:
        """Resumes the node, which SLURM has just shown as `node`, where laggard drained it. Returns what was done,
        empty for nothing. Raises SlurmError."""
        if not node.is_drained or not node.reason.startswith(PREFIX):
            return ""
        if not node.has_laggards_reason:
            return f"{self.node} was not resumed, its reason is not as laggard wrote it: {node.reason}"
        if not node.may_change:
            return f"{self.node} was not resumed, it is {node.state}"
        self._run("update", f"NodeName={self.node}", "State=RESUME")
        return f"{self.node} {RESUMED}: {node.reason}"

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
        return _run((self._scontrol, *words), seconds, {**os.environ, **_TIMES_IN_UTC})


def parse_config(text: str) -> dict[str, str]:
    """Parses what `scontrol show config` prints: a line `Name = value` for each."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def parse_node(text: str) -> SlurmNode:
    """Parses the node that `scontrol show node` prints. Raises SlurmError where it is not exactly one."""
    state, reason = re.findall(_STATE, text), re.findall(_REASON, text)
    if len(state) != 1 or not text.startswith("NodeName="):
        raise SlurmError("scontrol shows no node")
    base, *flags = state[0].replace("*", "+NOT_RESPONDING").split("+")
    return SlurmNode(base, frozenset(flags), reason[0] if reason else "", _utc(re.findall(_LAST_BUSY, text)))


def _utc(times: Sequence[str]) -> float | None:
    """The only time of `times`, in Unix seconds; None where there is no such time, as in a node that was never busy."""
    from calendar import timegm  # only here: it takes a millisecond of each gate's start

    try:
        return float(timegm(time.strptime(times[0], "%Y-%m-%dT%H:%M:%S"))) if len(times) == 1 else None
    except ValueError:
        return None


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


def _run(command: Sequence[str], seconds: float, environ: Mapping[str, str]) -> str:
    """Returns the output of `command`, within `seconds`: slurmctld may be away for minutes. Raises SlurmError."""
    import subprocess  # a tenth of the gate's start, and rarely needed

    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
    except OSError as error:
        raise NoProgram(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _give_up(process)
        raise NotReached(f"{command[0]} {command[1]} did not answer within {seconds:.2g} s") from None
    if process.returncode:
        said = " ".join((errors or output).decode(errors="replace").split())
        kinds = ((_NOT_FOUND, NoSuchNode), (_NOT_REACHED, NotReached))
        kind = next((kind for text, kind in kinds if re.search(text, said)), SlurmError)
        raise kind(f"{command[0]} {command[1]}: {said or f'exit status {process.returncode}'}")
    return output.decode(errors="replace")
