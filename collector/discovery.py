"""The discovery of agents: those that the settings list, and those that files, names in DNS and SLURM tell of, asked
again and again."""

from __future__ import annotations

import calendar
import glob
import itertools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from laggard.collector.targets import (
    ADMINISTRATOR,
    LAGGARD,
    MAX_FILE_BYTES,
    SLURM,
    NodeLabels,
    NodeOut,
    Target,
    Unusable,
    labels_in,
    parse_target,
    partitions_label,
    tree_of,
)
from laggard.kit.bounded_program import ProgramFailed, output_of
from laggard.kit.errors import UsageError
from laggard.kit.words import counted, printable_line
from laggard.model import Note

_NONE: Final[Mapping[Target, NodeLabels]] = MappingProxyType({})


class Unanswered(Exception):
    """The place cannot be read now. The text is one line: what is wrong, and with what."""


class Answer(NamedTuple):
    """The agents that a place names now. `note` says what in it could not be used; empty: nothing.
    `labels`: of the agents whose nodes it gives some. `out`: those whose nodes get no jobs."""

    targets: tuple[Target, ...] = ()
    note: str = ""
    labels: Mapping[Target, NodeLabels] = _NONE
    out: Mapping[Target, NodeOut] = {}


class Place(Protocol):
    def read(self) -> Answer:
        """May take seconds. Raises Unanswered."""


class Source:
    """A place, and its last answer. While it does not answer, that one holds, for `keep_seconds`: addresses are given
    to other machines, so an old list is not believed for ever."""

    def __init__(self, place: Place, keep_seconds: float) -> None:
        self.answer = Answer()
        self._place = place
        self._keep_seconds = keep_seconds
        self._answered_at: float | None = None

    def look(self, now: float) -> None:
        """Reads the place at `now`, in monotonic seconds."""
        try:
            self.answer, self._answered_at = self._place.read(), now
        except Unanswered as error:
            self.answer = self._last(str(error), now)

    def _last(self, failure: str, now: float) -> Answer:
        if self._answered_at is None:
            return Answer((), failure)
        age = now - self._answered_at
        if age > self._keep_seconds:
            return Answer((), f"{failure}; what it said {age:.0f} s ago holds no longer")
        return self.answer._replace(note=f"{failure}; what it said {age:.0f} s ago holds")


log = logging.getLogger("laggard.collector")

_KIND: Final = "discovery"


class Found(NamedTuple):
    """The agents to scrape, each once, and notes on the places that could not tell, or told too much. `labels`,
    `out`: as in Answer."""

    targets: tuple[Target, ...]
    notes: tuple[Note, ...] = ()
    labels: Mapping[Target, NodeLabels] = {}
    out: Mapping[Target, NodeOut] = {}


class Discovery:
    """`found` is replaced as a whole by each look. A thread of its own looks: a resolver may take half a minute to say
    that it does not know, and neither a scrape nor the end of the process waits for it."""

    def __init__(
        self,
        listed: Sequence[Target],
        places: Sequence[Place] = (),
        max_targets: int = 1 << 14,
        keep_seconds: float = 900.0,
    ) -> None:
        self._listed = tuple(listed)
        self._sources = [Source(place, keep_seconds) for place in places]
        self._max_targets = max_targets
        self._looked = threading.Event()
        self.found = self._all()

    def start(self, interval_seconds: float) -> None:
        """Looks now and every `interval_seconds`, until the process ends; there is nothing to do without
        places."""
        if self._sources:
            threading.Thread(
                target=self._look_for_ever, args=(interval_seconds,), name="discovery", daemon=True
            ).start()
        else:
            self._looked.set()

    def wait(self, seconds: float) -> None:
        """Returns when the first look is over, or after so many seconds."""
        self._looked.wait(seconds)

    def look(self, now: float) -> None:
        """Asks every place, at `now` in monotonic seconds. May take seconds."""
        before = self.found
        for source in self._sources:
            source.look(now)
        self.found = self._all()
        _log_changes(before, self.found)

    def _look_for_ever(self, interval_seconds: float) -> None:
        pause = threading.Event()  # sleep() has been seen to fail while a clock was set, and would end all looks
        while True:
            try:
                self.look(time.monotonic())
            except Exception:  # one failed look must not be the last
                log.exception("a defect in laggard: this look for agents was lost")
            self._looked.set()
            pause.wait(interval_seconds)

    def _all(self) -> Found:
        answers = [source.answer for source in self._sources]
        targets = dict.fromkeys(itertools.chain(self._listed, *(answer.targets for answer in answers)))
        notes = [answer.note for answer in answers if answer.note]
        if len(targets) > self._max_targets:
            notes.append(f"{len(targets)} agents are known: only {self._max_targets} are scraped (max_targets)")
        kept = tuple(itertools.islice(targets, self._max_targets))
        told = [f"looking for agents: {note}" for note in notes]
        labels: dict[Target, NodeLabels] = {}
        for target, given in itertools.chain.from_iterable(answer.labels.items() for answer in answers):
            labels[target] = labels.get(target, NodeLabels()).over(given)
        out = {target: it for answer in answers for target, it in answer.out.items()}
        return Found(kept, tuple(Note(_KIND, text) for text in told), labels, out)


def _log_changes(before: Found, after: Found) -> None:
    """One line where agents came or went, and one with what is wrong, which the log itself lets pass once a minute."""
    come, gone = set(after.targets) - set(before.targets), set(before.targets) - set(after.targets)
    if come or gone:
        log.info("%s to scrape: %d more, %d fewer", counted(len(after.targets), "agent"), len(come), len(gone))
    if after.notes:
        log.warning("%s", "; ".join(note.text for note in after.notes))


_NO_SUCH_NAME: Final = frozenset((socket.EAI_NONAME, socket.EAI_NODATA))
"""The errors with which the resolver says that a name has no address. All its others say that it does not know."""


class DnsName:
    """NAME, NAME:PORT or URL, as a target is written. Raises UsageError where it is none."""

    def __init__(self, text: str) -> None:
        parts = urlsplit(parse_target(text).url)
        self._scheme, self._name, self._port = parts.scheme, parts.hostname or "", parts.port or 0

    def read(self) -> Answer:
        """Each address of the name as a target, in order. A name with none is an answer, with a note. Where there are
        addresses of both families only IPv4's are taken, since the same agents have both. Raises Unanswered where the
        resolver cannot tell."""
        try:
            found = socket.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return Answer((), f"{self._name} has no address")
            raise Unanswered(f"{self._name} cannot be resolved: {(error.strerror or str(error)).lower()}") from None
        except (OSError, UnicodeError) as error:
            raise Unanswered(f"{self._name} cannot be resolved: {error}") from None
        hosts = {str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET}
        hosts = hosts or {f"[{address[0]}]" for family, _, _, _, address in found if family == socket.AF_INET6}
        return Answer(tuple(Target(self._scheme, f"{host}:{self._port}") for host in sorted(hosts)))


EVERY_PARTITION: Final = "*"
ANSWER_SECONDS: Final = 10.0
"""SLURM's own limit on a message. slurmctld may be away for minutes."""

_FIELDS: Final = "node=%o|%T|%R|%u|%H|%E"
_BEGINS: Final = "node="
_NO_MACHINE: Final = frozenset("~%")
"""The marks behind a state: powered down, or powering down."""
_NOT_MADE: Final = frozenset(("future", "powered_down", "powering_down"))
_SINFO_CHARACTERS: Final = 200
_OUT: Final = frozenset(("drained", "draining", "down", "fail", "failing", "error", "unknown", "inval", "maint"))
"""The states in which a node gets no new job (sinfo(1), NODE STATE CODES), apart from its use by others."""
_OF_SLURM: Final = (
    r"Not responding|Prolog error|Epilog error|Kill task failed|batch job complete failure|Duplicate jobid|Low |gres/|"
    r"Node unexpectedly rebooted|Bad core count|reboot|ResumeTimeout"
)
"""The reasons that SLURM's own daemons give (src/slurmctld/node_mgr.c, ping_nodes.c, src/slurmd/slurmd/req.c)."""


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
        out: dict[Target, NodeOut] = {}
        for address, state, partition, *why in map(_parts, lines):
            if not set(state) & _NO_MACHINE and state not in _NOT_MADE:
                target = self._add(address, partition, targets, refused)
                if target and (taken := _out(state, *why)):
                    out[target] = taken
        note = f"{counted(len(refused), 'node')} of SLURM left out: {refused[0]}" if refused else ""
        if not lines:
            note = f"SLURM has no node in partition {self.partition}"
        labels = {target: NodeLabels(partitions_label(names)) for target, names in targets.items()}
        return Answer(tuple(sorted(targets)), printable_line(note, _SINFO_CHARACTERS), labels, out)

    def _add(self, address: str, partition: str, targets: dict[Target, list[str]], refused: list[str]) -> Target | None:
        host = f"[{address}]" if ":" in address else address
        try:
            target = parse_target(f"{self._scheme}://{host}:{self._port}")
        except UsageError as error:
            refused.append(str(error))
            return None
        targets.setdefault(target, []).append(partition)
        return target


def _parts(line: str) -> list[str]:
    """The parts of a line as _FIELDS has them; empty where there is none."""
    return [*line.split("|", 5), *[""] * 5][:6]


def _out(state: str, user: str, since: str, reason: str) -> NodeOut | None:
    """None: the node gets jobs. `user`: who gave the reason; `since` in UTC."""
    base = re.sub(r"[^a-z_]+$", "", state)
    if base not in _OUT:
        return None
    try:
        at = float(calendar.timegm(time.strptime(since, "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        at = 0.0
    drained = base.startswith("drain")
    if drained and reason.startswith("laggard:"):
        by = LAGGARD
    elif (base != "maint" and not drained and user != "root") or user == "slurm" or re.match(_OF_SLURM, reason):
        by = SLURM
    else:
        by = ADMINISTRATOR
    return NodeOut(by, at, "" if reason == "none" else printable_line(reason, _SINFO_CHARACTERS))


def _run(command: tuple[str, ...], seconds: float) -> str:
    """Returns what `command` prints, to either stream. Raises Unanswered."""
    try:
        output, status = output_of(command, seconds, _without_defaults(os.environ))
    except ProgramFailed as error:
        raise Unanswered(f"SLURM cannot be asked: {error}") from None
    text = output.decode(errors="replace")
    if status:
        said = printable_line(" ".join(text.split()), _SINFO_CHARACTERS)
        raise Unanswered(f"SLURM cannot be asked: {said or f'exit status {status}'}")
    return text


def _without_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Less the variables that change what sinfo lists. Times are in UTC."""
    kept = {name: value for name, value in environ.items() if not name.startswith("SINFO_")}
    return {**kept, "TZ": "UTC0", "SLURM_TIME_FORMAT": "standard"}


MAX_FILES: Final = 256

_SCHEME: Final = "__scheme__"
_MESSAGE_CHARACTERS: Final = 160


class _Group(msgspec.Struct, frozen=True):
    """One entry of the list in such a file. Of the labels the scheme counts here, and
    partition, rack and team of its nodes."""

    targets: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class _Read(NamedTuple):
    version: tuple[int, int, int]
    answer: Answer


class TargetFiles:
    """The files that `pattern` names: a path, in which `*`, `?` and `[...]` stand for more."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._held: dict[str, _Read] = {}

    def read(self) -> Answer:
        """The agents in all files. A file that cannot be used is named in the note, and what it said last holds; so is
        a target that cannot be read. Raises Unanswered where there is no file."""
        paths = sorted(glob.glob(self._pattern))
        if not paths:
            raise Unanswered(f"{self._pattern}: no such file")
        notes = [f"{self._pattern}: of {len(paths)} files only {MAX_FILES} are read"] if paths[MAX_FILES:] else []
        self._held = {path: self._read_if_changed(path, notes) for path in paths[:MAX_FILES]}
        answers = [held.answer for held in self._held.values()]
        notes += [answer.note for answer in answers if answer.note]
        targets = tuple(target for answer in answers for target in answer.targets)
        labels = {target: given for answer in answers for target, given in answer.labels.items()}
        return Answer(targets, "; ".join(notes), labels)

    def _read_if_changed(self, path: str, notes: list[str]) -> _Read:
        """The file's agents; those that were read last where it cannot be read now."""
        before = self._held.get(path, _Read((0, 0, 0), Answer()))
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                return (
                    before if version == before.version else _Read(version, _parse(path, file.read(MAX_FILE_BYTES + 1)))
                )
        except OSError as error:
            notes.append(f"{path} cannot be read: {(error.strerror or str(error)).lower()}")
        except Unusable as error:
            notes.append(f"{path} is not used: {printable_line(str(error), _MESSAGE_CHARACTERS)}")
        return before


def _parse(path: str, body: bytes) -> Answer:
    """Raises Unusable where the file is not a list of targets."""
    try:
        groups = msgspec.convert(tree_of(path, body), tuple[_Group, ...] | None) or ()
    except (ValueError, RecursionError) as error:  # msgspec's and Unicode's are ValueErrors
        raise Unusable(f'{error}; write [{{"targets": ["HOST:PORT"]}}]') from None
    targets: list[Target] = []
    refused: list[str] = []
    labels: dict[Target, NodeLabels] = {}
    for group in groups:
        scheme = group.labels.get(_SCHEME, "http")
        given = labels_in(group.labels)
        for text in group.targets:
            try:
                target = parse_target(text if "://" in text else f"{scheme}://{text}")
                targets.append(target)
                if any(given):
                    labels[target] = given
            except UsageError as error:
                refused.append(str(error))
    note = f"{path}: {counted(len(refused), 'target')} left out: {refused[0]}" if refused else ""
    return Answer(tuple(targets), printable_line(note, 2 * _MESSAGE_CHARACTERS), labels)
