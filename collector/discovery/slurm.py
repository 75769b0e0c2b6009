"""The nodes of a SLURM cluster as agents: those of a partition, or all, as sinfo lists them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from laggard.bounded_program import ProgramFailed, output_of
from laggard.collector.discovery.source import Answer, Unanswered
from laggard.collector.node_labels import NodeLabels, partitions_label
from laggard.collector.scrape.targets import Target, parse_target
from laggard.errors import UsageError
from laggard.text.words import counted, printable_line

EVERY_PARTITION: Final = "*"
ANSWER_SECONDS: Final = 10.0
"""SLURM's own limit on a message. slurmctld may be away for minutes."""

_FIELDS: Final = "node=%o|%T|%R"
_BEGINS: Final = "node="
_NO_MACHINE: Final = frozenset("~%")
"""The marks behind a state: powered down, or powering down."""
_NOT_MADE: Final = frozenset(("future", "powered_down", "powering_down"))
_MESSAGE_CHARACTERS: Final = 200


class SlurmPartition:
    """PARTITION, PARTITION:PORT or https://PARTITION:PORT, where `*` is every partition: the port and the scheme are
    the agents'. Raises UsageError where it is none. `sinfo`: the program."""

    def __init__(self, text: str, sinfo: str, seconds: float = ANSWER_SECONDS) -> None:
        if not sinfo.startswith("/"):
            raise UsageError(f"sinfo is {sinfo!r}: give an absolute path, such as /usr/bin/sinfo")
        target = parse_target(text)
        self._scheme, self._port = target.scheme, target.address.rpartition(":")[2]
        self.partition = text.rpartition("://")[2].rstrip("/").partition(":")[0]  # in its own case
        self._sinfo = sinfo
        self._seconds = seconds

    def read(self) -> Answer:
        """The address of each node by which SLURM reaches it, once and in order; of a node without a machine (switched
        off to save power, or not made yet) there is none. Its label is the partition, those that it is in where all are
        asked for. Raises Unanswered where SLURM cannot tell."""
        return self._answer(_run(self._command(), self._seconds))

    def _command(self) -> tuple[str, ...]:
        which = ("--all",) if self.partition == EVERY_PARTITION else (f"--partition={self.partition}",)
        return (self._sinfo, "--noheader", "--Node", *which, f"--format={_FIELDS}")

    def _answer(self, output: str) -> Answer:
        lines = [line[len(_BEGINS) :].strip() for line in output.splitlines() if line.startswith(_BEGINS)]
        targets: dict[Target, list[str]] = {}
        refused: list[str] = []
        for address, state, partition in map(_parts, lines):
            if not set(state) & _NO_MACHINE and state not in _NOT_MADE:
                self._add(address, partition, targets, refused)
        note = f"{counted(len(refused), 'node')} of SLURM left out: {refused[0]}" if refused else ""
        if not lines:
            note = f"SLURM has no node in partition {self.partition}"
        labels = {target: NodeLabels(partitions_label(names)) for target, names in targets.items()}
        return Answer(tuple(sorted(targets)), printable_line(note, _MESSAGE_CHARACTERS), labels)

    def _add(self, address: str, partition: str, targets: dict[Target, list[str]], refused: list[str]) -> None:
        host = f"[{address}]" if ":" in address else address
        try:
            targets.setdefault(parse_target(f"{self._scheme}://{host}:{self._port}"), []).append(partition)
        except UsageError as error:
            refused.append(str(error))


def _parts(line: str) -> tuple[str, str, str]:
    """The address, the state and the partition of a line; without one where there is none."""
    address, state, partition = (*line.split("|", 2), "", "")[:3]
    return address, state, partition


def _run(command: tuple[str, ...], seconds: float) -> str:
    """Returns what `command` prints, to either stream. Raises Unanswered."""
    try:
        output, status = output_of(command, seconds, _without_defaults(os.environ))
    except ProgramFailed as error:
        raise Unanswered(f"SLURM cannot be asked: {error}") from None
    text = output.decode(errors="replace")
    if status:
        said = printable_line(" ".join(text.split()), _MESSAGE_CHARACTERS)
        raise Unanswered(f"SLURM cannot be asked: {said or f'exit status {status}'}")
    return text


def _without_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Less the variables that change what sinfo lists."""
    return {name: value for name, value in environ.items() if not name.startswith("SINFO_")}
