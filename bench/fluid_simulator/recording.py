"""Writes the recording of a case: for each rank a file of JSON lines, as docs/development/contracts.md describes
them."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fluid_simulator.chance import Generator
from fluid_simulator.happened import Happened
from fluid_simulator.last_words import Standing
from fluid_simulator.lines import Writer
from fluid_simulator.losses import Clocks, Losses
from fluid_simulator.plan import Plan
from fluid_simulator.rank import Rank, Record, Span

SHOWN_STEP_SECONDS = 0.8
"""Ranks write beats where a step takes less: a beat says that none has ended for a second."""
RANK_STREAM = 99
"""The word of seeds that says which numbers are drawn."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """The recording of what happened."""

    plan: Plan
    happened: Happened
    losses: Losses
    clocks: Clocks
    job_id: str

    def write(self, folder: Path) -> int:
        """Writes `rank-N.jsonl` into the folder, which it makes; returns how many lines there are."""
        folder.mkdir(parents=True)
        ended = self.happened.run.last_time + 0.3
        count = 0
        for rank in self.happened.run.ranks:
            if rank.number in self.losses.ranks:
                continue
            lines = self._lines(rank, ended)
            count += len(lines)
            (folder / f"rank-{rank.number}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return count

    def _lines(self, rank: Rank, ended: float) -> list[str]:
        plan, standstill = self.plan, self.happened.standstill
        writer = Writer(rank, self.clocks, plan.job.settings.blocking)
        rng = np.random.default_rng([plan.seed, RANK_STREAM, rank.number])
        lost = self.losses.steps(rng, plan.steps)
        standing = Standing(plan, self.happened.run, rank, standstill, writer) if standstill else None
        lines = [self._head(), self._identity(rank)]
        lines += self._records(rank, writer, lost, standing is None or not standing.ends_by_itself)
        if standing is None:
            lines.append(writer.end(ended + 0.2 * rng.random()))
        else:
            lines += standing.lines(rng)
        return lines

    def _head(self) -> str:
        beats = bool(self.happened.standstill or self._longest_step() < SHOWN_STEP_SECONDS)
        return json.dumps({"laggard_recording": 1, "job_id": self.job_id, "ends": True, "beats": beats})

    def _longest_step(self) -> float:
        """Seconds."""
        return max((step.end - step.start for rank in self.happened.run.ranks for step in rank.steps), default=0.0)

    def _identity(self, rank: Rank) -> str:
        plan, cluster, number = self.plan, self.plan.cluster, rank.number
        groups = {group.name: {"role": group.role, "ranks": group.ranks} for group in rank.groups.all()}
        gpu = f"GPU-{(plan.seed * 1000003 + number * 7919) % 2**32:08x}"
        return (
            f'{{"kind":"rank","rank":{number},"node":"{cluster.name(number)}","local_rank":{number % cluster.gpus},'
            f'"gpu":"{gpu}","attempt":0,"world_size":{cluster.world},'
            f'"unix_minus_clock":{self.clocks.unix_minus_clock(cluster.machine(number)):.6f},'
            f'"position":{json.dumps(plan.drawn.positions[number])},"groups":{json.dumps(groups)},'
            f'"facts":{{"script":"train.py","started":{self.clocks.unix - 60:.3f}}}}}'
        )

    def _records(self, rank: Rank, writer: Writer, lost: set[int], whole_steps: bool) -> Iterator[str]:
        """The lines of each step. `whole_steps`: what a step without an end has is not written any more."""
        last = rank.steps[-1].number if rank.steps else -1
        ended = {step.number: step for step in rank.steps}
        records: defaultdict[int, list[Record]] = defaultdict(list)
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        for record in rank.records:
            records[record.step].append(record)
        for span in rank.spans:
            spans[span.step].append(span)
        for step in sorted(records):
            if step in lost or (step > last and whole_steps):
                continue
            yield from map(writer.collective, records[step])
            if not self.losses.no_steps and step in ended:
                yield from map(writer.span, spans[step])
                yield writer.step(ended[step])


def draw_recording(rng: Generator, plan: Plan, happened: Happened, losses: Losses) -> Recording:
    clocks = Clocks(rng, plan.cluster.machines, losses.clock_set)
    return Recording(plan, happened, losses, clocks, f"job-{int(rng.integers(100_000, 10_000_000))}")
