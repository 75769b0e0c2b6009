"""Recordings: JSON lines of steps, spans and collectives, one file a rank or one for all, to evidence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from laggard.collector.evidence import WINDOW_STEPS, Evidence, Member, RankState, build_evidence
from laggard.errors import UsageError
from laggard.names import PHASES
from laggard.wire import Beat, InFlight, StepRow

OTHER = PHASES.index("other")


@dataclasses.dataclass
class _Step:
    """What is known of one rank's step while its lines are read."""

    start: float | None = None
    end: float | None = None
    spans: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)  # phase, start, end
    waits: list[tuple[float, float]] = dataclasses.field(default_factory=list)  # when a wait ended, how long it took
    own: tuple[float, ...] | None = None  # by phase, where that is told in place of spans and collectives
    waited: float = 0.0


@dataclasses.dataclass
class _Rank:
    node: str | None = None
    gpu: str | None = None
    attempt: int = 0
    state: RankState | None = None
    steps: dict[int, _Step] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trace:
    """A recording read, and what could not be used of it."""

    evidence: Evidence
    lacks: tuple[str, ...]


def read_trace(paths: Sequence[str | Path]) -> Trace:
    """The recording in files or directories. Raises UsageError naming the file and line that is not one."""
    reading = _Reading()
    for path in _files(paths):
        reading.read(path)
    return reading.trace()


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
            if not inside:
                raise UsageError(f"{path} holds no recording; `laggard run --record {path}` writes one")
            yield from inside
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"no recording at {path}")


class _Reading:
    def __init__(self) -> None:
        self._job: str | None = None
        self._ranks: dict[int, _Rank] = {}
        self._world = 0
        self._lacks: list[str] = []
        self._codes: dict[str, tuple[str, ...]] = {}
        self._here: set[int] = set()  # of the file that is being read
        self._ended: set[int] = set()

    def read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not a laggard recording: it is not text") from None
        head = _json(lines[0]) if lines else None
        if not isinstance(head, dict) or head.get("laggard_recording") != 1:
            raise UsageError(
                f'{path} is not a laggard recording: its first line is not {{"laggard_recording": 1, ...}}'
            )
        self._job = self._job or head.get("job_id")
        self._here, self._ended = set(), set()
        for number, line in enumerate(lines[1:], 2):
            self._take(line, f"{path}:{number}")
        if head.get("ends"):
            self._lacks += [_unended(rank, self._ranks[rank]) for rank in sorted(self._here - self._ended)]
            if not self._here:
                self._lacks.append(f"{path} holds no record: its process was killed before its first step was over")

    def _take(self, line: str, where: str) -> None:
        record = _json(line)
        if not isinstance(record, dict):
            if line.endswith("\n") and line.strip():
                raise UsageError(f"{where} is not a JSON object")
            if line.strip():
                self._lacks.append(f"{where} is cut off: the last record is left out")
            return
        try:
            self._add(record)
        except KeyError as error:
            raise UsageError(f"{where}: a {record.get('kind')!r} record lacks {error}") from None
        except (TypeError, ValueError) as error:
            raise UsageError(f"{where}: {error}") from None

    def _add(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "findings":
            self._codes[str(_text(record["node"]))] = tuple(str(_text(code)) for code in record["codes"])
        if kind not in ("rank", "step", "span", "collective", "state", "end"):
            return  # later versions may add kinds
        number = _whole(record["rank"])
        self._here.add(number)
        rank = self._ranks.setdefault(number, _Rank())
        if kind == "rank":
            self._introduce(rank, record)
        elif kind == "state":
            rank.state = _state(record)
        elif kind == "end":
            self._end(number, _whole(record.get("lost") or 0))
        elif record.get("step") is not None:
            _add_to_step(rank.steps.setdefault(_whole(record["step"]), _Step()), kind, record)

    def _end(self, rank: int, lost: int) -> None:
        self._ended.add(rank)
        if lost:
            self._lacks.append(f"the recording of rank {rank} lacks {lost} records that could not be written")

    def _introduce(self, rank: _Rank, record: dict[str, Any]) -> None:
        rank.node, rank.gpu = _text(record.get("node")), _text(record.get("gpu"))
        for group in _mapping(record.get("groups")).values():
            members = _mapping(group).get("ranks") or ()
            if not isinstance(members, list):
                raise ValueError(f"{members!r} is not a list of ranks")
            self._world = max(self._world, *(_whole(member) + 1 for member in members), 0)
        self._world = max(self._world, _whole(record.get("world_size") or 0))

    def trace(self) -> Trace:
        rows = {number: _rows(rank) for number, rank in self._ranks.items()}
        if not any(rows.values()):
            self._lacks.append("no record carries a step")
        members = {
            number: Member(rank.node, rank.gpu, _final(rank, rows[number])) for number, rank in self._ranks.items()
        }
        world = max(self._world, max(self._ranks, default=-1) + 1)
        last = sorted({row.step for each in rows.values() for row in each})[-WINDOW_STEPS:]
        first = last[0] if last else 0
        kept = {number: [row for row in each if row.step >= first] for number, each in rows.items()}
        return Trace(build_evidence(self._job, world, members, kept, self._codes), tuple(self._lacks))


def _final(rank: _Rank, rows: Sequence[StepRow]) -> RankState:
    """How the rank stood when the recording was made; at its end, where that is not told."""
    state = rank.state or RankState("finished", None, None, None)
    return state._replace(step=rows[-1].step if rows else None)


def _unended(number: int, rank: _Rank) -> str:
    last = max((step for step, it in rank.steps.items() if it.end is not None), default=None)
    after = "its first step" if last is None else f"step {last}"
    return f"the recording of rank {number} has no end: its process was killed, and what it did after {after} is lost"


def _state(record: dict[str, Any]) -> RankState:
    """As `laggard locate --record` writes it."""
    return RankState(
        str(_text(record["state"])),
        None,
        _text(record.get("phase")),
        msgspec.convert(record.get("in_flight"), InFlight | None),
        record.get("stopped") is True,
        msgspec.convert(record.get("beat"), Beat | None),
    )


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a rank or step number")
    return value


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value or {}


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e12:
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)


def _add_to_step(step: _Step, kind: str, record: dict[str, Any]) -> None:
    end = record.get("end")
    if kind == "collective":
        start = record.get("start", record.get("issued"))
        if end is not None and start is not None:
            waited = record.get("waited")
            ended = _seconds(end)
            step.waits.append((ended, ended - _seconds(start) if waited is None else _seconds(waited)))
    elif end is not None and kind == "span":
        name = record["name"]
        phase = PHASES.index(name) if name in PHASES else OTHER
        step.spans.append((phase, _seconds(record["start"]), _seconds(end)))
    elif end is not None:
        step.start, step.end = _seconds(record["start"]), _seconds(end)
        if record.get("own") is not None:
            own = _mapping(record["own"])
            step.own, step.waited = tuple(_seconds(own.get(name, 0.0)) for name in PHASES), _seconds(record["waited"])


def _rows(rank: _Rank) -> list[StepRow]:
    """Where steps are told as such, what follows the last is none: the collectives of one that was broken off."""
    told = any(step.end is not None for step in rank.steps.values())
    steps = {number: step for number, step in rank.steps.items() if step.end is not None or not told}
    return [row for number in sorted(steps) if (row := _row(number, steps[number])) is not None]


def _row(number: int, step: _Step) -> StepRow | None:
    """A step's own time by phase. Without a step record, it lasts from its first moment to its last."""
    ends = [end for _, _, end in step.spans] + [end for end, _ in step.waits]
    starts = [start for _, start, _ in step.spans] + [end - waited for end, waited in step.waits]
    start = min(starts, default=0.0) if step.start is None else step.start
    end = max(ends, default=0.0) if step.end is None else step.end
    if end <= start:
        return None
    if step.own is not None:
        return StepRow(number, start, end, step.own, step.waited)
    phases = [0.0] * len(PHASES)
    for phase, began, ended in step.spans:
        phases[phase] += ended - began - _waited_within(step.waits, began, ended)
    waited = sum(seconds for _, seconds in step.waits)
    phases[OTHER] += end - start - waited - sum(phases)
    return StepRow(number, start, end, tuple(phases), waited)


def _waited_within(waits: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """The waits that ended within a span: a wait belongs to the phase in which it blocked."""
    return sum(seconds for ended, seconds in waits if start <= ended <= end)
