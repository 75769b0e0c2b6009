"""A file of a recording, or a part of one: its lines, by kind, and whether the process that writes it still runs.
Knows neither files nor how lines are split.

A recording without an end is one of a process that was killed, or of one that still writes: the process itself tells,
where this machine sees it. Where it does not, what was written seconds ago is not over yet, and of anything older
nothing is known.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any, NamedTuple

from msgspec import structs

from laggard.kit.processes import GONE, STOPPED
from laggard.locate import job_timings
from laggard.rankfile.fact_names import DEEPSPEED, DIGEST_SKIPPED, ENVIRONMENT, OWN_THREADS
from laggard.recording import records
from laggard.recording.tables import Tables
from laggard.stacks.sampled import Sampled, decode
from laggard.wire.ranks import CpuWait

FRESH_SECONDS = 15.0
"""The age of a recording below which its process counts as running. A rank that lives writes every 5 s at least. Our
own choice."""


class Writer(NamedTuple):
    """The process that wrote a file, as of `seen_at`, Unix time: `state` as of processes.identity.state_of(), and how
    many seconds ago the file was written for the last time."""

    state: str | None
    seen_at: float
    written_seconds_ago: float

    @property
    def is_stopped(self) -> bool:
        return self.state == STOPPED

    @property
    def is_gone(self) -> bool:
        return self.state == GONE

    def lives(self, last_record_at: float | None) -> bool:
        """`last_record_at`: in Unix time, by the rank's clock; None where that is not known, or where nothing new is
        expected of the job. The file's own time does not do alone: a copy of an old recording is a new file."""
        if self.state is not None:
            return self.state != GONE
        ages = (self.written_seconds_ago, self.seen_at - (last_record_at or 0.0))
        return all(abs(age) < FRESH_SECONDS for age in ages)


UNKNOWN_WRITER = Writer(None, 0.0, float("inf"))


_MAX_SAW = 4096
"""The most lines of one part about other ranks: a rank sees at most 64, each of which is stopped and goes on a few
times."""

_MAX_STACKS = 1024
"""The most documents of stacks of one part: a rank writes one a minute, and the newest of a long run are not needed."""


@dataclasses.dataclass
class RecordedPart:
    """A file of a recording, or what stands in it between one first line and the next: records of one job. `ends`:
    whether each rank that ended has an end record; `beats`: whether each that finished no step for a while says where
    it stood."""

    path: str
    job_id: str | None
    ends: bool
    beats: bool
    columns: records.Columns
    writer: Writer = UNKNOWN_WRITER
    living: set[int] = dataclasses.field(default_factory=set)
    lines: dict[int, records.RankLine] = dataclasses.field(default_factory=dict)
    states: dict[int, records.StateLine] = dataclasses.field(default_factory=dict)
    found: dict[str, job_timings.NodeFindings] = dataclasses.field(default_factory=dict)
    end_lines: dict[int, records.EndLine] = dataclasses.field(default_factory=dict)
    beat_lines: dict[int, records.BeatLine] = dataclasses.field(default_factory=dict)
    environments: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    threads: dict[int, job_timings.OwnThreads | None] = dataclasses.field(default_factory=dict)
    cpu_waits: dict[int, CpuWait] = dataclasses.field(default_factory=dict)
    _digests: dict[int, dict[int, int]] = dataclasses.field(default_factory=dict)  # by rank and step
    _digest_lines: dict[int, records.DigestLine] = dataclasses.field(default_factory=dict)  # the last
    left: dict[int, float] = dataclasses.field(default_factory=dict)  # by rank: when it left torch.distributed
    departed: set[int] = dataclasses.field(default_factory=set)  # and recorded nothing after that
    stopped: dict[int, str] = dataclasses.field(default_factory=dict)  # why the recording of a rank ends before it does
    saw: list[records.SawLine] = dataclasses.field(default_factory=list)
    stacks: list[Sampled] = dataclasses.field(default_factory=list)
    contradictory: set[int] = dataclasses.field(default_factory=set)  # ranks that are said to be on two nodes

    def add(self, kind: str, line: bytes) -> None:
        """Adds a record that is not timed; one of an unknown kind is passed over. Raises INVALID."""
        if kind in records.LINES:
            self._add(records.decode_as(line, records.LINES[kind]))

    def _add(self, line: object) -> None:
        match line:
            case records.RankLine():
                self._add_rank(line)
            case records.StateLine():
                self.states[line.rank] = line
            case records.ThreadsLine():
                self.threads[line.rank] = job_timings.own_threads({OWN_THREADS: line.own_threads})
            case records.CpuWaitLine():
                self.cpu_waits[line.rank] = CpuWait(*structs.astuple(line.cpu_wait))
            case records.DigestLine():
                self._add_digest(line)
            case records.EnvironmentLine():
                self.environments[line.rank] = {ENVIRONMENT: line.environment, DEEPSPEED: line.deepspeed}
            case records.EndLine():
                self.end_lines[line.rank] = line
            case records.SawLine() if len(self.saw) < _MAX_SAW:
                self.saw.append(line)
            case records.LeftLine():
                self.left[line.rank] = line.at_unix
            case records.StoppedLine():
                self.stopped[line.rank] = line.why
            case records.BeatLine():
                self.beat_lines[line.rank] = line
            case records.StacksLine() if len(self.stacks) < _MAX_STACKS:
                self.stacks.append(decode(bytes(line.stacks)))
            case records.FindingsLine():
                self.found[line.node] = job_timings.NodeFindings(line.codes, line.of_gpus, line.gpus)

    def _add_digest(self, line: records.DigestLine) -> None:
        """Keeps the first and the newest of a rank's digests."""
        self._digest_lines[line.rank] = line
        kept = self._digests.setdefault(line.rank, {})
        if line.step is not None and re.fullmatch(job_timings.HEXADECIMAL, line.value):
            kept[line.step] = int(line.value, 16)
            if len(kept) > job_timings.MAX_KEPT + 1:
                del kept[[*itertools.islice(kept, 2)][1]]

    def rank_digests(self) -> dict[int, job_timings.RankDigests | None]:
        """The digests of each rank that has some, or says why it has none."""
        return {
            rank: job_timings.digests({DIGEST_SKIPPED: line.skipped})
            or job_timings.collected(line.every, self._digests[rank].items())
            for rank, line in self._digest_lines.items()
        }

    def _add_rank(self, line: records.RankLine) -> None:
        before = self.lines.get(line.rank)
        if before is not None:
            if before.node and line.node and before.node != line.node:
                self.contradictory.add(line.rank)
            for name in ("node", "gpu", "attempt", "world_size", "unix_minus_clock"):
                setattr(line, name, getattr(before, name) if getattr(line, name) is None else getattr(line, name))
            line.position = {**(before.position or {}), **(line.position or {})}
            line.groups = {**(before.groups or {}), **(line.groups or {})}
            line.facts = {**(before.facts or {}), **(line.facts or {})}
        self.lines[line.rank] = line

    @property
    def attempt(self) -> int:
        return max((line.attempt or 0 for line in self.lines.values()), default=0)

    @property
    def ranks(self) -> set[int]:
        return {*self.columns.ranks(), *self.lines, *self.states, *self.beat_lines, *self.end_lines}

    @property
    def without_end(self) -> set[int]:
        """The ranks that have no end, where the part has one of each that ended."""
        ended = {*self.end_lines, *self.stopped, *self.departed}
        return self.ranks - ended if self.ends else set()

    @property
    def killed(self) -> set[int]:
        """Those of them that are not known to run."""
        return self.without_end - self.living

    def last_step_at(self, tables: Tables, rank: int) -> float | None:
        """The time at which the rank finished its last step, in Unix time."""
        about, ended = self.lines.get(rank), tables.last_end(rank)
        return (
            None if about is None or about.unix_minus_clock is None or ended is None else ended + about.unix_minus_clock
        )

    def last_record_at(self, tables: Tables, rank: int) -> float | None:
        """The time at which the rank wrote its last record, by its clock, in Unix time."""
        about, beat, ended = self.lines.get(rank), self.beat_lines.get(rank), tables.last_end(rank)
        if about is None or about.unix_minus_clock is None or ended is None:
            return None
        finished = tables.last_step(rank)
        is_last = (
            beat is not None and beat.last_step is not None and finished is not None and beat.last_step >= finished
        )
        quiet = beat.quiet_seconds if beat is not None and is_last else 0.0
        return ended + quiet + about.unix_minus_clock
