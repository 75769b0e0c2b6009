"""Collects the records of a recording and turns them into timings. Knows neither files nor lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from laggard.collector.locate.job_timings import WINDOW_STEPS, JobTimings, RankInfo, RankState, build_timings
from laggard.collector.recording.fields import as_mapping, as_number, as_text
from laggard.collector.recording.steps import RecordedStep, step_rows
from laggard.wire.ranks import BeatRow, InFlight, StepRow


@dataclasses.dataclass
class _RecordedRank:
    node: str | None = None
    gpu: str | None = None
    state: RankState | None = None
    steps: dict[int, RecordedStep] = dataclasses.field(default_factory=dict)


class RecordedJob:
    """One job, built up record by record. `gaps` are lines that say what the recording lost, in the order in which they
    were found."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self._job_id: str | None = None
        self._ranks: dict[int, _RecordedRank] = {}
        self._world_size = 0
        self._codes: dict[str, tuple[str, ...]] = {}
        self._ranks_in_file: set[int] = set()
        self._ended_ranks: set[int] = set()  # of the same file

    def begin_file(self, job_id: str | None) -> None:
        """A file of the recording begins. The first file with a job id names the job."""
        self._job_id = self._job_id or job_id
        self._ranks_in_file, self._ended_ranks = set(), set()

    def end_file(self, path: str) -> None:
        """A file is over that has an end record for each rank that ended: its other ranks were killed."""
        killed = sorted(self._ranks_in_file - self._ended_ranks)
        self.gaps += [_killed_rank_gap(rank, self._ranks[rank]) for rank in killed]
        if not self._ranks_in_file:
            self.gaps.append(f"{path} holds no record: its process was killed before its first step was over")

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds one record. Raises KeyError, TypeError and ValueError for a field that is missing or wrong."""
        kind = record.get("kind")
        if kind == "findings":
            self._codes[str(as_text(record["node"]))] = tuple(str(as_text(code)) for code in record["codes"])
        if kind not in ("rank", "step", "span", "collective", "state", "end"):
            return  # later versions may add kinds
        number = as_number(record["rank"])
        self._ranks_in_file.add(number)
        rank = self._ranks.setdefault(number, _RecordedRank())
        if kind == "rank":
            self._add_identity(rank, record)
        elif kind == "state":
            rank.state = _rank_state(record)
        elif kind == "end":
            self._add_end(number, as_number(record.get("lost") or 0))
        elif record.get("step") is not None:
            rank.steps.setdefault(as_number(record["step"]), RecordedStep()).add(kind, record)

    def _add_end(self, rank: int, lost: int) -> None:
        self._ended_ranks.add(rank)
        if lost:
            self.gaps.append(f"the recording of rank {rank} lacks {lost} records that could not be written")

    def _add_identity(self, rank: _RecordedRank, record: Mapping[str, Any]) -> None:
        rank.node, rank.gpu = as_text(record.get("node")), as_text(record.get("gpu"))
        for group in as_mapping(record.get("groups")).values():
            members = as_mapping(group).get("ranks") or ()
            if not isinstance(members, list):
                raise ValueError(f"{members!r} is not a list of ranks")
            self._world_size = max(self._world_size, *(as_number(member) + 1 for member in members), 0)
        self._world_size = max(self._world_size, as_number(record.get("world_size") or 0))

    def timings(self) -> JobTimings:
        """The newest WINDOW_STEPS steps of all that was added."""
        rows = {number: step_rows(rank.steps) for number, rank in self._ranks.items()}
        if not any(rows.values()):
            self.gaps.append("no record carries a step")
        ranks = {
            number: RankInfo(rank.node, rank.gpu, _final_state(rank, rows[number]))
            for number, rank in self._ranks.items()
        }
        world_size = max(self._world_size, max(self._ranks, default=-1) + 1)
        last = sorted({row.step for each in rows.values() for row in each})[-WINDOW_STEPS:]
        first = last[0] if last else 0
        kept = {number: [row for row in each if row.step >= first] for number, each in rows.items()}
        return build_timings(self._job_id, world_size, ranks, kept, self._codes)


def _final_state(rank: _RecordedRank, rows: Sequence[StepRow]) -> RankState:
    """The rank's state when the recording was made; `finished` where the recording does not say."""
    state = rank.state or RankState("finished", None, None, None)
    return state._replace(step=rows[-1].step if rows else None)


def _killed_rank_gap(number: int, rank: _RecordedRank) -> str:
    last = max((step for step, it in rank.steps.items() if it.end is not None), default=None)
    after = "its first step" if last is None else f"step {last}"
    return f"the recording of rank {number} has no end: its process was killed, and what it did after {after} is lost"


def _rank_state(record: Mapping[str, Any]) -> RankState:
    """A state record, as `laggard locate --record` writes it."""
    return RankState(
        str(as_text(record["state"])),
        None,
        as_text(record.get("phase")),
        msgspec.convert(record.get("in_flight"), InFlight | None),
        record.get("stopped") is True,
        msgspec.convert(record.get("beat"), BeatRow | None),
    )
