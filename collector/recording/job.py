"""What a recording says of a job, record by record, and the evidence in it. Knows neither files nor lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from laggard.collector.locate.job_timings import WINDOW_STEPS, Evidence, Member, RankState, build_evidence
from laggard.collector.recording.fields import mapping, text, whole
from laggard.collector.recording.steps import TracedStep, step_rows
from laggard.wire import Beat, InFlight, StepRow


@dataclasses.dataclass
class _Rank:
    node: str | None = None
    gpu: str | None = None
    state: RankState | None = None
    steps: dict[int, TracedStep] = dataclasses.field(default_factory=dict)


class TracedJob:
    """`lacks`: what the recording lost, in the order in which that was seen, one line each."""

    def __init__(self) -> None:
        self.lacks: list[str] = []
        self._name: str | None = None
        self._ranks: dict[int, _Rank] = {}
        self._world = 0
        self._codes: dict[str, tuple[str, ...]] = {}
        self._here: set[int] = set()  # of the file that is being read
        self._ended: set[int] = set()

    def begin(self, name: str | None) -> None:
        """A file of the recording begins, which calls the job so."""
        self._name = self._name or name
        self._here, self._ended = set(), set()

    def finish(self, where: str) -> None:
        """The file is over that tells of each rank in it when it ended: those of which it does not were killed."""
        self.lacks += [_unended(rank, self._ranks[rank]) for rank in sorted(self._here - self._ended)]
        if not self._here:
            self.lacks.append(f"{where} holds no record: its process was killed before its first step was over")

    def add(self, record: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError and ValueError for a field that is missing or wrong."""
        kind = record.get("kind")
        if kind == "findings":
            self._codes[str(text(record["node"]))] = tuple(str(text(code)) for code in record["codes"])
        if kind not in ("rank", "step", "span", "collective", "state", "end"):
            return  # later versions may add kinds
        number = whole(record["rank"])
        self._here.add(number)
        rank = self._ranks.setdefault(number, _Rank())
        if kind == "rank":
            self._introduce(rank, record)
        elif kind == "state":
            rank.state = _state(record)
        elif kind == "end":
            self._end(number, whole(record.get("lost") or 0))
        elif record.get("step") is not None:
            rank.steps.setdefault(whole(record["step"]), TracedStep()).add(kind, record)

    def _end(self, rank: int, lost: int) -> None:
        self._ended.add(rank)
        if lost:
            self.lacks.append(f"the recording of rank {rank} lacks {lost} records that could not be written")

    def _introduce(self, rank: _Rank, record: Mapping[str, Any]) -> None:
        rank.node, rank.gpu = text(record.get("node")), text(record.get("gpu"))
        for group in mapping(record.get("groups")).values():
            members = mapping(group).get("ranks") or ()
            if not isinstance(members, list):
                raise ValueError(f"{members!r} is not a list of ranks")
            self._world = max(self._world, *(whole(member) + 1 for member in members), 0)
        self._world = max(self._world, whole(record.get("world_size") or 0))

    def evidence(self) -> Evidence:
        """The newest WINDOW_STEPS steps of all that was added."""
        rows = {number: step_rows(rank.steps) for number, rank in self._ranks.items()}
        if not any(rows.values()):
            self.lacks.append("no record carries a step")
        members = {
            number: Member(rank.node, rank.gpu, _final(rank, rows[number])) for number, rank in self._ranks.items()
        }
        world = max(self._world, max(self._ranks, default=-1) + 1)
        last = sorted({row.step for each in rows.values() for row in each})[-WINDOW_STEPS:]
        first = last[0] if last else 0
        kept = {number: [row for row in each if row.step >= first] for number, each in rows.items()}
        return build_evidence(self._name, world, members, kept, self._codes)


def _final(rank: _Rank, rows: Sequence[StepRow]) -> RankState:
    """How the rank stood when the recording was made; at its end, where that is not told."""
    state = rank.state or RankState("finished", None, None, None)
    return state._replace(step=rows[-1].step if rows else None)


def _unended(number: int, rank: _Rank) -> str:
    last = max((step for step, it in rank.steps.items() if it.end is not None), default=None)
    after = "its first step" if last is None else f"step {last}"
    return f"the recording of rank {number} has no end: its process was killed, and what it did after {after} is lost"


def _state(record: Mapping[str, Any]) -> RankState:
    """As `laggard locate --record` writes it."""
    return RankState(
        str(text(record["state"])),
        None,
        text(record.get("phase")),
        msgspec.convert(record.get("in_flight"), InFlight | None),
        record.get("stopped") is True,
        msgspec.convert(record.get("beat"), Beat | None),
    )
