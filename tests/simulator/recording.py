"""Writes a simulated case as recordings, one file a rank, in docs/development/contracts.md's form, each on its node's
clock."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.case import Simulated
from simulator.programme import OTHER, PHASES, Item, Record

Floats = npt.NDArray[np.float64]

CLOCK_BASE = 1000.0  # seconds since the machines' start
LAST_WORDS = 0.1  # seconds before its end whose records a killed process loses
HOST_PACE = 0.3  # a host launches a step's work in this share of the time that the device takes for it


class Span(NamedTuple):
    """A phase of one microbatch: the first and last of its items on the main stream."""

    phase: int
    micro: int
    first: int
    last: int


class Written(NamedTuple):
    """The columns of one rank's collectives, (steps, records): seconds on the rank's clock. `began` tells which ever
    began."""

    issued: Floats
    start: Floats
    end: Floats
    waited: Floats


class RankWriter:
    """Writes one rank's file."""

    def __init__(self, simulated: Simulated, rank: int, clock: tuple[float, float]) -> None:
        self.simulated = simulated
        self.rank = rank
        self.offset, self.rate = clock
        self.plan = simulated.programme
        items = self.plan.items
        self.indices = [index for index in np.flatnonzero(self.plan.rank == rank)]
        self.indices.sort(key=lambda index: items[index].number)
        self.calls = [index for index in self.indices if items[index].record is not None]
        self.records = [record for index in self.calls if (record := items[index].record) is not None]
        self.spans = list(spans(self.plan.items, self.indices))
        self.device = simulated.case.form == "device"
        self.sparse = simulated.case.form == "sparse"
        self.dead_at = simulated.dead_at.get(rank, np.inf)
        self.has_end = {
            "complete": True,
            "exceptions": rank not in simulated.dead_at and rank not in simulated.stopped,
            "live": False,
            "terminated": rank in simulated.dead_at,
        }[simulated.ending]

    def lines(self, steps: int) -> Iterator[str]:
        header = {"laggard_recording": 1, "job_id": f"case-{self.simulated.case.seed}"}
        yield json.dumps(header | ({"ends": True} if self.simulated.ending != "live" else {})) + "\n"
        yield json.dumps(self.rank_line()) + "\n"
        yield from self.step_lines(steps)
        if self.has_end and steps >= self.simulated.case.steps:
            yield json.dumps({"kind": "end", "rank": self.rank, "lost": 0}) + "\n"

    def rank_line(self) -> dict[str, object]:
        layout, rank = self.plan.layout, self.rank
        groups = {layout.group(rank, "world")}
        groups |= {record.group for record in self.records}
        node, local = layout.node(rank), layout.local_rank(rank)
        line = {
            "kind": "rank",
            "rank": rank,
            "node": f"n{node}",
            "local_rank": local,
            "gpu": f"GPU-{node:04x}-{local}",
            "attempt": 0,
            "world_size": layout.world_size,
            "position": layout.position(rank),
            "groups": {group.name: {"role": group.role, "ranks": group.ranks} for group in sorted(groups)},
        }
        return line

    def clock(self, times: Floats) -> Floats:
        return CLOCK_BASE + self.offset + self.rate * times

    def columns(self) -> Written:
        """Returns what the collectives' records say. A call made beside the main stream ends, for a host, when its wait
        returned, and a buffered send once it is copied; a device's clock tells when it was done."""
        times, items = self.simulated.times, self.plan.items
        count = len(times.ready)
        shape = (count, len(self.calls))
        issued, start, end, waited = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape)
        entered = times.entered[:, self.rank]
        for column, (index, record) in enumerate(zip(self.calls, self.records, strict=True)):
            item = items[index]
            start[:, column] = self.came(item) if item.on_main else times.ready[:, index]
            end[:, column] = times.end[:, index]
            issued[:, column] = start[:, column]
            if record.issue is not None:
                issued[:, column] = entered if record.issue < 0 else times.end[:, record.issue]
                if not self.device or record.op == "all_reduce":
                    start[:, column] = issued[:, column]  # ready with its data; it may queue behind the last bucket
            with np.errstate(invalid="ignore"):  # what never began has waited for nothing
                waited[:, column] = end[:, column] - start[:, column] if item.on_main else 0.0
                if record.wait is not None:
                    waited[:, column] = times.end[:, record.wait] - self.came(items[record.wait])
            if record.flight is not None and self.device:
                end[:, column] = times.end[:, record.flight]
            if record.wait is not None and not self.device:
                end[:, column] = times.end[:, record.wait]
        if self.device:
            with np.errstate(invalid="ignore"):
                issued = entered[:, None] + HOST_PACE * (start - entered[:, None])
        return Written(issued, start, end, waited)

    def came(self, item: Item) -> Floats:
        """Returns when the main stream came to this item."""
        times = self.simulated.times
        before = item.predecessors[:1]
        if not before or not self.plan.items[before[0]].on_main:
            return times.entered[:, self.rank]
        return times.end[:, before[0]]

    def step_lines(self, steps: int) -> Iterator[str]:
        times = self.simulated.times
        columns = self.columns()
        clocked = [self.clock(column) for column in columns[:3]]
        waits = columns.waited * self.rate
        formats = [self.format(record) for record in self.records]
        each_step = Counter((record.group, record.op, record.peer) for record in self.records)
        strides = [each_step[record.group, record.op, record.peer] for record in self.records]
        order = np.argsort(columns.end, axis=1, kind="stable")
        span_starts = np.stack([self.came(self.plan.items[span.first]) for span in self.spans], axis=1)
        span_ends = np.stack([times.end[:, span.last] for span in self.spans], axis=1)
        starts, ends = self.clock(span_starts), self.clock(span_ends)
        begun, left = times.entered[:, self.rank], times.left[:, self.rank]
        step_begin, step_end = self.clock(begun), self.clock(left)
        for step in range(min(steps, len(begun))):
            if not np.isfinite(begun[step]) or begun[step] > self.dead_at - LAST_WORDS:
                return
            unfinished = not np.isfinite(left[step]) or left[step] > self.dead_at - LAST_WORDS
            if unfinished and not self.keeps_unfinished():
                return
            rows = [column[step].tolist() for column in (*clocked, waits)]
            for call in order[step]:
                began, ended = columns.start[step, call], columns.end[step, call]
                if not np.isfinite(began) or began > self.dead_at:
                    continue
                issued, start, end, waited = (row[call] for row in rows)
                done = np.isfinite(ended) and ended <= self.dead_at
                seq = self.records[call].seq + step * strides[call]
                yield formats[call] % (step, seq, issued, start, f'{end:.6f},"waited":{waited:.6f}' if done else "null")
            if self.sparse:
                continue
            for place, span in enumerate(self.spans):
                if span_ends[step, place] <= self.dead_at and np.isfinite(span_ends[step, place]):
                    yield (
                        f'{{"kind":"span","rank":{self.rank},"step":{step},"name":"{PHASES[span.phase]}",'
                        f'"start":{starts[step, place]:.6f},"end":{ends[step, place]:.6f},"micro":{span.micro}}}\n'
                    )
            if not unfinished:
                yield (
                    f'{{"kind":"step","rank":{self.rank},"step":{step},"start":{step_begin[step]:.6f},'
                    f'"end":{step_end[step]:.6f}}}\n'
                )

    def keeps_unfinished(self) -> bool:
        """Tells whether the unfinished step is in the file: a process that was killed has lost it."""
        if self.simulated.ending == "live":
            return self.rank not in self.simulated.dead_at
        return self.has_end or self.simulated.ending == "terminated"

    def format(self, record: Record) -> str:
        """Returns a collective's line with places for its step, seq, issued, start, and end with waited."""
        peer = "" if record.peer is None else f'"peer":{record.peer},'
        return (
            f'{{"kind":"collective","rank":{self.rank},"step":%d,"group":"{record.group.name}","op":"{record.op}",'
            f'{peer}"seq":%d,"bytes":{record.size},"issued":%.6f,"start":%.6f,"end":%s,'
            f'"clock":"{"device" if self.device else "host"}"}}\n'
        )


def spans(items: list[Item], indices: list[int]) -> Iterator[Span]:
    """Yields the phases of one rank's step: neighbouring items of one phase and microbatch."""
    current: Span | None = None
    for index in indices:
        item = items[index]
        if not item.on_main:
            continue
        named = item.in_span and item.phase != OTHER
        if current and named and (current.phase, current.micro) == (item.phase, item.micro):
            current = current._replace(last=index)
            continue
        if current:
            yield current
        current = Span(item.phase, item.micro, index, index) if named else None
    if current:
        yield current


def clocks(simulated: Simulated) -> list[tuple[float, float]]:
    """Returns each node's clock: its offset in seconds, and its rate."""
    case = simulated.case
    draw = case.generator("clocks")
    offsets = draw.uniform(-case.clock_offset, case.clock_offset, simulated.programme.layout.nodes)
    drifts = draw.uniform(-case.clock_drift, case.clock_drift, simulated.programme.layout.nodes)
    return [(float(offset), 1.0 + float(drift)) for offset, drift in zip(offsets, drifts, strict=True)]


def write(simulated: Simulated, directory: Path, steps: int | None = None) -> None:
    """Writes a case into `directory`, which it creates: trace/rank-N.jsonl, which tools read, and truth.json beside
    them. With `steps` the recordings end after as many."""
    trace = directory / "trace"
    trace.mkdir(parents=True, exist_ok=True)
    layout = simulated.programme.layout
    by_node = clocks(simulated)
    for rank in range(layout.world_size):
        writer = RankWriter(simulated, rank, by_node[layout.node(rank)])
        lines = writer.lines(simulated.case.steps if steps is None else steps)
        (trace / f"rank-{rank}.jsonl").write_text("".join(lines))
    (directory / "truth.json").write_text(json.dumps(simulated.truth, indent=1) + "\n")
