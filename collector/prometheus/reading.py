"""Asks Prometheus about one job at one moment: counters, states, and who the ranks are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from laggard.collector.prometheus import queries
from laggard.collector.prometheus.answer import Labels, Series
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.counters import Counters, Floats, Moments, Table, differences, rank_numbers, table
from laggard.collector.prometheus.stall import Ranks
from laggard.collector.prometheus.suspects import Detail, detail


class Reading:
    """One job at the moment `now` (Unix seconds). Several queries are under way together."""

    def __init__(self, prometheus: Prometheus, pool: ThreadPoolExecutor, job: queries.Job, now: float) -> None:
        self.prometheus, self.job, self.now = prometheus, job, now
        self._pool = pool

    def counters(
        self, moments: Moments, few: Sequence[int], ranks: Sequence[int] | None = None, outside_phases: bool = False
    ) -> Counters:
        """Returns the counters of `ranks`. None: of all ranks, but without the time outside phases unless
        `outside_phases`, because asking for that costs more than looking closely at too many ranks. `few`: the ranks
        whose step durations are asked for."""
        some = [()] if ranks is None else [(queries.among(part),) for part in queries.parts(ranks)]
        measured = tuple(few) if ranks is None else tuple(ranks[:100])
        metrics = {"steps": queries.STEPS, "own": queries.OWN_SECONDS, "input": queries.INPUT_SECONDS}
        asked = {name: [queries.selector(metric, self.job, *them) for them in some] for name, metric in metrics.items()}
        asked["few"] = [queries.selector(queries.STEP_SECONDS, self.job, queries.among(measured))]
        if ranks is not None or outside_phases:
            other = ("phase=", "other")
            asked["other"] = [queries.selector(queries.PHASE_SECONDS, self.job, other, *them) for them in some]
        tables = self._tables(asked, moments)
        count = max(each.count for each in tables.values())
        steps = tables["steps"].of(count)
        present = np.flatnonzero(np.isfinite(steps).any(axis=0))
        sampled = np.array([rank for rank in measured if rank < count], np.int64)
        machines = tables["steps"].machines()
        return Counters(
            ranks=present,
            machines=tuple(machines[rank] or None for rank in present.tolist()),
            steps=steps[:, present],
            own=tables["own"].of(count)[:, present],
            input=tables["input"].of(count)[:, present],
            other=tables["other"].of(count)[:, present] if "other" in tables else None,
            step_seconds=tables["few"].of(count)[:, sampled],
            few_steps=steps[:, sampled],
        )

    def detail(self, ranks: Sequence[int], moments: Moments) -> Detail:
        """The phases and the waits of these ranks."""
        by_phase: dict[str, Table] = {}
        query = queries.selector(queries.PHASE_SECONDS, self.job, queries.among(ranks))
        for part in self.prometheus.over_time(query, moments.start, moments.end, moments.step):
            for phase, some in _by_phase(part):
                by_phase.setdefault(phase, Table(moments)).add(some)
        waits = queries.selector(queries.COLLECTIVE_SECONDS, self.job, queries.among(ranks))
        steps = queries.selector(queries.STEPS, self.job, queries.among(ranks))
        once = f"max by (rank, op, group) ({waits})"  # of replicas that write into one store, one
        tables = self._tables({"steps": [steps], "waits": [f"sum by (rank) ({once})"]}, moments)
        columns, count = np.array(ranks, np.int64), max(ranks) + 1

        def of(found: Table) -> Floats:
            return found.of(max(count, found.count))[:, columns]

        made = differences(of(tables["steps"]))
        phases = {phase: of(found) for phase, found in by_phase.items()}
        return detail(ranks, np.where(made > 0, made, np.nan), phases, of(tables["waits"]))

    def states(self, counters: Counters, apart: float) -> Ranks:
        """The ranks with what they do now, and with how much their signs of life have moved in the last `apart`
        seconds."""
        up = queries.selector(queries.UP, self.job)
        beats, progress = (queries.selector(name, self.job) for name in (queries.LAST_BEAT, queries.LAST_PROGRESS))
        asked = [(f"timestamp({up})", self.now), (up, self.now)]
        asked += [(queries.selector(queries.IN_FLIGHT, self.job), self.now)]
        asked += [(query, moment) for query in (beats, progress) for moment in (self.now, self.now - apart)]
        values = list(self._pool.map(lambda each: self._values(each[0], each[1], counters.ranks), asked))
        stamps, runs, in_flight, beat, beat_before, got_on, got_on_before = values
        fresh = stamps > self.now - 2 * apart  # false where there is none
        return Ranks(
            numbers=counters.ranks,
            nodes=counters.machines,
            up=np.where(fresh, runs, np.nan),
            in_flight=in_flight,
            beat_moved=beat - beat_before,
            progress_moved=got_on - got_on_before,
            seconds=apart,
        )

    def who(self, ranks: Sequence[int]) -> dict[int, Labels]:
        """The labels that say who the ranks are, by laggard_rank_info; of several attempts the last."""
        found: dict[int, Labels] = {}
        if not ranks:
            return found
        query = queries.selector(queries.INFO, self.job, queries.among(ranks))
        for part in self.prometheus.at(query, self.now):
            for number, labels in zip(rank_numbers(part.labels).tolist(), part.labels, strict=True):
                before = found.get(number)
                if before is None or small_number(labels.attempt) >= small_number(before.attempt):
                    found[number] = labels
        return found

    def _tables(self, asked: Mapping[str, Sequence[str]], moments: Moments) -> dict[str, Table]:
        """One of each, from one query or several."""

        def one(several: Sequence[str]) -> Table:
            times = moments.start, moments.end, moments.step
            return table(moments, chain.from_iterable(self.prometheus.over_time(query, *times) for query in several))

        return dict(zip(asked, self._pool.map(one, asked.values()), strict=True))

    def _values(self, query: str, moment: float, ranks: NDArray[np.int64]) -> Floats:
        """[R]: an instant's values; nan where there is none."""
        held = np.full(int(ranks.max(initial=0)) + 1, np.nan)
        for part in self.prometheus.at(query, moment):
            numbers = rank_numbers(part.labels)
            right = (numbers >= 0) & (numbers < len(held))
            held[numbers[right]] = part.values[right]
        found: Floats = held[ranks]
        return found


def _by_phase(part: Series) -> Iterable[tuple[str, Series]]:
    """The series of each phase."""
    names = np.array([labels.phase for labels in part.labels])
    of_sample = np.repeat(names, part.counts)
    for phase in sorted(set(names)):
        chosen = [labels for labels in part.labels if labels.phase == phase]
        mine = of_sample == phase
        yield phase, Series(chosen, part.counts[names == phase], part.times[mine], part.values[mine])


def small_number(text: str) -> int:
    """The number that a label is, 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
