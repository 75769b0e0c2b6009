"""Writes what happened as the recording of each rank: JSON lines, as docs/development/contracts.md describes them."""

import dataclasses
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard_bench.cluster import Cluster
from laggard_bench.faults import Fault
from laggard_bench.program import CallRecord, Program, SpanRecord, Times
from laggard_bench.simulate import Job, Run

EPOCH = 1_769_000_000.0
"""The Unix time at which all jobs began: long before anybody reads them, so that no reader takes them for live."""
GIVE_UP_SECONDS = 90.0
"""When the launcher kills a job that stands still."""


@dataclasses.dataclass(frozen=True)
class Clocks:
    """The clock of each rank: `offset` and `drift` (a share) of its own, `unix` its idea of Unix time less the clock;
    from the true time `jump_at[rank]` on it is set by `jump[rank]` seconds."""

    offset: Times
    drift: Times
    unix: Times
    jump: dict[int, float]
    jump_at: float

    def read(self, rank: int, times: Times) -> Times:
        """What the rank's clock shows at true times."""
        shown: Times = times * (1.0 + self.drift[rank]) + self.offset[rank]
        if rank not in self.jump:
            return shown
        set_by: Times = np.where(times >= self.jump_at, shown + self.jump[rank], shown)
        return set_by


@dataclasses.dataclass(frozen=True)
class Losses:
    """What is missing: ranks without a file, and by rank the steps of which nothing was kept; `no_steps`: no step
    lines at all."""

    ranks: frozenset[int] = frozenset()
    steps: dict[int, frozenset[int]] = dataclasses.field(default_factory=dict)
    no_steps: bool = False


@dataclasses.dataclass(frozen=True)
class Identity:
    job_id: str
    cluster: Cluster
    clocks: Clocks
    losses: Losses
    recorder: bool  # whether torch's Flight Recorder told the beats anything
    witnesses: bool  # whether ranks saw how others of their machine ended
    ahead: bool  # whether hosts launch what follows while the GPU waits, up to the end of the step
    hidden: str = ""  # the library whose waits nobody sees, where the ranks know of it


class _Rank:
    """The records of one rank in one program, as a text with places for numbers."""

    def __init__(
        self, program: Program, rank: int, calls: list[CallRecord], spans: list[SpanRecord], no_steps: bool
    ) -> None:
        place = program.place
        self.calls, self.spans, self.rank = calls, spans, rank
        self.start = place[[call.start for call in calls]] if calls else np.zeros(0, np.int64)
        self.end = place[[call.end for call in calls]] if calls else np.zeros(0, np.int64)
        self.wait = place[[call.wait for call in calls]] if calls else np.zeros(0, np.int64)
        lanes: Counter[tuple[str, str, int]] = Counter()
        self.lane, self.within = [], []
        for call in calls:
            lane = (call.op, call.group, call.peer)
            self.lane.append(lane)
            self.within.append(lanes[lane])
            lanes[lane] += 1
        self.counts = lanes
        self.span_start = place[[span.start for span in spans]]
        self.span_end = place[[span.end for span in spans]]
        self.first, self.last = program.first[rank], program.last[rank]
        self.call_lines = [self._call(call) for call in calls]
        self.no_steps = no_steps
        self.text = "".join([*self.call_lines, *map(self._span, spans), "" if no_steps else self._step()])

    def _call(self, call: CallRecord) -> str:
        peer = "" if call.peer < 0 else f'"peer":{call.peer},'
        return (
            f'{{"kind":"collective","rank":{self.rank},"step":%d,"group":"{call.group}","op":"{call.op}",{peer}'
            f'"seq":%d,"bytes":{call.size},"issued":%.6f,"start":%.6f,"end":%.6f,"waited":%.6f,"clock":"device"}}\n'
        )

    def _span(self, span: SpanRecord) -> str:
        return (
            f'{{"kind":"span","rank":{self.rank},"step":%d,"name":"{span.phase}","start":%.6f,"end":%.6f,'
            f'"micro":{span.micro}}}\n'
        )

    def _step(self) -> str:
        return f'{{"kind":"step","rank":{self.rank},"step":%d,"start":%.6f,"end":%.6f,"work":%d}}\n'

    def values(self, step: int, clock: Times, done: Counter[tuple[str, str, int]], work: int) -> list[float]:
        count = len(self.calls)
        call = np.empty((count, 6))
        call[:, 0] = step
        call[:, 1] = [done[lane] + within for lane, within in zip(self.lane, self.within, strict=True)]
        call[:, 3] = clock[self.start]
        call[:, 2] = np.maximum(call[:, 3] - 0.0003, clock[self.first])
        call[:, 4] = clock[self.end]
        call[:, 5] = clock[self.end] - clock[self.wait]
        span = np.empty((len(self.spans), 3))
        span[:, 0], span[:, 1], span[:, 2] = step, clock[self.span_start], clock[self.span_end]
        last = [] if self.no_steps else [step, clock[self.first], clock[self.last], work]
        return [*call.ravel().tolist(), *span.ravel().tolist(), *last]


def write(folder: Path, who: Identity, job: Job, run: Run, faults: list[Fault], work: NDArray[np.float64]) -> int:
    """Writes a file for each rank; returns the number of lines. `work`: [steps, world], tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = 0
    stop = next((fault for fault in faults if fault.kind in ("hang", "death")), None)
    records = [_by_rank(program, who.losses.no_steps) for program in job.programs]
    for rank in range(job.world):
        if rank in who.losses.ranks:
            continue
        written = _RankFile(who, job, run, records, rank, stop, faults, work[:, rank]).lines()
        if written:
            text = "".join(written)
            (folder / f"rank-{rank}.jsonl").write_text(text, encoding="utf-8")
            lines += text.count("\n")
    return lines


def recorder_tells(who: Identity, job: Job, run: Run, rank: int) -> bool:
    """Whether the Flight Recorder shows that the rank alone has not begun a collective of the world that all others
    have."""
    program, times = job.programs[job.of_step[len(run.times) - 1]], run.times[-1]
    begun = dict.fromkeys(program.ranks, 0)
    for call in program.calls:
        if len(program.groups[call.group].ranks) == job.world:
            begun[call.rank] += int(np.isfinite(times[program.place[call.ready]]))
    others = [count for other, count in begun.items() if other != rank and other not in who.losses.ranks]
    return who.recorder and bool(others) and begun[rank] < min(others)


def _by_rank(program: Program, no_steps: bool) -> dict[int, _Rank]:
    calls: dict[int, list[CallRecord]] = {rank: [] for rank in program.ranks}
    spans: dict[int, list[SpanRecord]] = {rank: [] for rank in program.ranks}
    for call in program.calls:
        calls[call.rank].append(call)
    for span in program.spans:
        spans[span.rank].append(span)
    return {rank: _Rank(program, rank, calls[rank], spans[rank], no_steps) for rank in program.ranks}


class _RankFile:
    def __init__(
        self,
        who: Identity,
        job: Job,
        run: Run,
        records: list[dict[int, _Rank]],
        rank: int,
        stop: Fault | None,
        faults: list[Fault],
        work: Times,
    ) -> None:
        self.who, self.job, self.run, self.rank, self.stop, self.work = who, job, run, rank, stop, work
        self.records = records
        self.done: Counter[tuple[str, str, int]] = Counter()
        self.last_end, self.last_step = 0.0, -1

    def lines(self) -> list[str]:
        if not any(self.rank in self.job.programs[number].ranks for number in self.job.of_step):
            return []
        found = [self._head(), self._about()]
        steps = len(self.run.times)
        for step in range(steps):
            mine = self.records[self.job.of_step[step]].get(self.rank)
            if mine is None:
                continue
            times = self.run.times[step]
            if not np.isfinite(times[mine.last]):
                return found + self._broken(mine, step, times)
            found += self._step(mine, step, times)
        return found + self._orderly_end(steps)

    def _head(self) -> str:
        node = self.who.cluster.node_of(self.rank)
        process = {
            "pid": 4000 + self.rank % self.who.cluster.gpus_per_node,
            "start_ticks": 90000 + self.rank,
            "boot_id": str(uuid.UUID(int=0x5741 << 96 | node + 1)),
            "pid_namespace": 4026531836,
        }
        return _line(
            {"laggard_recording": 1, "job_id": self.who.job_id, "ends": True, "beats": True, "process": process}
        )

    def _about(self) -> str:
        cluster, rank = self.who.cluster, self.rank
        groups, position = {}, {}
        for program in self.job.programs:
            for group in sorted(program.groups.values(), key=lambda group: len(group.ranks)):
                if rank in group.ranks and group.role != "hidden" and len(group.ranks) > 1:
                    groups[group.name] = {"role": group.role, "ranks": list(group.ranks)}
                    if group.role in ("dp", "tp", "pp", "ep"):
                        position[group.role] = group.ranks.index(rank)
        facts: dict[str, Any] = {"script": "train.py", "started": EPOCH - 60}
        if self.who.hidden:
            facts["hidden_waits"] = [self.who.hidden]
        return _line(
            {
                "kind": "rank",
                "rank": rank,
                "node": cluster.name(cluster.node_of(rank)),
                "local_rank": rank % cluster.gpus_per_node,
                "gpu": f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.who.job_id}/{rank}')}",
                "attempt": 0,
                "world_size": self.job.world,
                "unix_minus_clock": EPOCH - float(self.who.clocks.offset[rank]) + float(self.who.clocks.unix[rank]),
                "position": position,
                "groups": groups,
                "facts": facts,
            }
        )

    def _step(self, mine: _Rank, step: int, times: Times) -> list[str]:
        kept = step not in self.who.losses.steps.get(self.rank, ())
        text = []
        if kept:
            clock = self.who.clocks.read(self.rank, times)
            text.append(mine.text % tuple(mine.values(step, clock, self.done, int(self.work[step]))))
        self.done.update(mine.counts)
        self.last_end, self.last_step = float(times[mine.last]), step
        return text

    def _at(self, time: float) -> float:
        return float(self.who.clocks.read(self.rank, np.array([time]))[0])

    def _orderly_end(self, steps: int) -> list[str]:
        """What a rank writes that trained to the end, or left the job in order before."""
        at = self._at(self.last_end + 0.5)
        unix = EPOCH + self.last_end + 0.4
        lost = len(self.who.losses.steps.get(self.rank, ()))
        left = {"kind": "left", "rank": self.rank, "last_step": self.last_step, "at_unix": unix}
        return [_line(left), _line({"kind": "end", "rank": self.rank, "lost": lost * 8, "at_seconds": at})]

    def _broken(self, mine: _Rank, step: int, times: Times) -> list[str]:
        """The step that did not end: what of it did, and what the rank says of where it stands."""
        assert self.stop is not None
        is_culprit = self.rank in self.stop.stops
        stood_since = float(times[np.isfinite(times)].max())
        clock = self.who.clocks.read(self.rank, times)
        killed = self.stop.kind == "death" and is_culprit and self.stop.how != "exception"
        cut = stood_since - 0.1 if killed else np.inf
        entered, done = Counter(self.done), Counter(self.done)
        lines, flight = [], None
        for place, call in enumerate(mine.calls):
            lane, seq = mine.lane[place], self.done[mine.lane[place]] + mine.within[place]
            begun, over = (float(times[events[place]]) for events in (mine.start, mine.end))
            launched = np.isfinite(begun) or self._launches_ahead(is_culprit)
            entered[lane] += int(launched)
            if over < cut:
                done[lane] += 1
                shown = (clock[events[place]] for events in (mine.start, mine.start, mine.end))
                waited = clock[mine.end[place]] - clock[mine.wait[place]]
                lines.append(mine.call_lines[place] % (step, seq, *shown, waited))
            elif launched and (flight is None or self.who.ahead):
                flight = (call, seq, begun if np.isfinite(begun) else stood_since)
        if self.stop.kind == "hang" and not (is_culprit and self.stop.how == "stopped"):
            phase, world = self._phase(mine, times), self._of_world(mine, times)
            for after in (1.2, 6.0, 31.0, GIVE_UP_SECONDS - 3.0):
                lines.append(self._beat(self.last_end, after, phase, flight, entered, done, is_culprit, world))
        return lines + self._last_words(is_culprit, stood_since, flight, clock, mine, step)

    def _launches_ahead(self, is_culprit: bool) -> bool:
        """Whether the host has launched what its GPU has not come to; one that is stuck itself has not."""
        assert self.stop is not None
        return self.who.ahead and self.stop.kind == "hang" and not (is_culprit and self.stop.how != "gpu")

    def _of_world(self, mine: _Rank, times: Times) -> list[tuple[bool, bool]]:
        """Of each collective of the world in this step: whether its kernel began, and whether it ended."""
        program = self.job.programs[self.job.of_step[len(self.run.times) - 1]]
        return [
            (bool(np.isfinite(times[program.place[call.ready]])), bool(np.isfinite(times[program.place[call.done]])))
            for call in mine.calls
            if len(program.groups[call.group].ranks) == self.job.world
        ]

    def _phase(self, mine: _Rank, times: Times) -> str | None:
        for place, span in enumerate(mine.spans):
            if np.isfinite(times[mine.span_start[place]]) and not np.isfinite(times[mine.span_end[place]]):
                return span.phase
        return None

    def _beat(
        self,
        end: float,
        after: float,
        phase: str | None,
        flight: tuple[CallRecord, int, float] | None,
        entered: Counter[tuple[str, str, int]],
        done: Counter[tuple[str, str, int]],
        is_culprit: bool,
        world: list[tuple[bool, bool]],
    ) -> str:
        blocked = flight is not None and not (is_culprit and self.stop is not None and self.stop.how == "code")
        lanes = [
            {"op": op, "group": group, "entered": count, "done": done[(op, group, peer)]}
            | ({} if peer < 0 else {"peer": peer})
            for (op, group, peer), count in entered.items()
        ]
        beat = {
            "age_seconds": 0.0,
            "interval_seconds": min(5.0, max(1.0, after / 2)),
            "flight_recorder": "on" if self.who.recorder else "off",
            "lanes": lanes,
            "groups": self._groups(entered, world, after) if self.who.recorder else [],
            "groups_age_seconds": 0.0 if self.who.recorder else None,
        }
        line: dict[str, Any] = {"kind": "beat", "rank": self.rank, "last_step": self.last_step, "quiet_seconds": after}
        line |= {"phase": phase, "in_flight": None, "beat": beat}
        if blocked and flight is not None:
            call, seq, since = flight
            line["in_flight"] = {
                "op": call.op,
                "group": call.group,
                "seq": seq + 1,
                "seconds": max(0.0, round(end + after - since, 3)),
            } | ({} if call.peer < 0 else {"peer": call.peer})
        return _line(line)

    def _groups(
        self, entered: Counter[tuple[str, str, int]], world: list[tuple[bool, bool]], after: float
    ) -> list[dict[str, Any]]:
        """The world, as the Flight Recorder tells of it: launched, begun and completed on the GPU."""
        of_world = [lane for lane in entered if len(self.job.groups[lane[1]].ranks) == self.job.world]
        before = sum(self.done[lane] for lane in of_world)
        counts = {
            "enqueued": sum(entered[lane] for lane in of_world),
            "started": before + sum(began for began, _ in world),
            "completed": before + sum(ended for _, ended in world),
        }
        return [{"name": "#0", **counts, "seconds": after}]

    def _last_words(
        self, is_culprit: bool, stood_since: float, flight: Any, clock: Times, mine: _Rank, step: int
    ) -> list[str]:
        assert self.stop is not None
        seen = [] if is_culprit else self._seen("gone" if self.stop.kind == "death" else "stopped", stood_since)
        if self.stop.kind == "hang" and (self.stop.ended == "killed" or is_culprit):
            return seen
        if is_culprit and self.stop.how != "exception":
            return []
        died = {"exit_code": 1, "exception": "torch.OutOfMemoryError", "others_failed": False}
        waited = {"exit_code": 1, "exception": "torch.distributed.DistBackendError", "others_failed": True}
        gave_up = GIVE_UP_SECONDS if self.stop.kind == "hang" else 3.0
        how, after = (died, 0.2) if is_culprit else (waited, gave_up + self.rank % 7 / 10)
        lines = seen
        if flight is not None and not is_culprit:
            call, seq, _ = flight
            place = mine.calls.index(call)
            line = {"kind": "collective", "rank": self.rank, "step": step, "group": call.group, "op": call.op}
            line |= {} if call.peer < 0 else {"peer": call.peer}
            begun = float(clock[mine.start[place]])
            start = round(begun if np.isfinite(begun) else self._at(stood_since), 6)
            line |= {"seq": seq, "bytes": call.size, "issued": start, "start": start, "end": None, "waited": 0.0}
            lines.append(_line({**line, "clock": "device"}))
        end = {"kind": "end", "rank": self.rank, "lost": 0, "at_seconds": self._at(stood_since + after), **how}
        return [*lines, _line(end)]

    def _seen(self, state: str, since: float) -> list[str]:
        """What this rank sees of those of its machine that stopped or went."""
        assert self.stop is not None
        cluster = self.who.cluster
        here = [it for it in self.stop.stops if cluster.node_of(it) == cluster.node_of(self.rank)]
        if not self.who.witnesses or self.stop.how in ("exception", "code", "gpu"):
            return []
        signal = {"signal": "SIGKILL"} if state == "gone" else {}
        return [
            _line(
                {"kind": "saw", "rank": self.rank, "last_step": self.last_step, "of": rank, "state": state}
                | {"at_unix": EPOCH + since + 1.5, **signal, "phase": None, "in_flight": None}
            )
            for rank in here
        ]


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
