"""PromQL about one job, and what Prometheus answers of one moment: counters, states, and who the ranks are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.prometheus.client import Labels, Prometheus, Series
from laggard.collector.prometheus.counters import Counters, Floats, Moments, Table, last_steps, rank_numbers
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import RankState
from laggard.wire.ranks import BeatRow, InFlight, LaneProgress

STEPS = "laggard_rank_steps_total"
STEP_SECONDS = "laggard_rank_step_seconds_total"
OWN_SECONDS = "laggard_rank_own_seconds_total"
INPUT_SECONDS = "laggard_rank_input_seconds_total"
PHASE_SECONDS = "laggard_rank_phase_seconds_total"
COLLECTIVES = "laggard_rank_collectives_total"
COLLECTIVE_SECONDS = "laggard_rank_collective_seconds_total"
LAST_PROGRESS = "laggard_rank_last_progress_timestamp_seconds"
LAST_BEAT = "laggard_rank_last_beat_timestamp_seconds"
IN_FLIGHT = "laggard_rank_in_flight_seconds"
UP = "laggard_rank_up"
INFO = "laggard_rank_info"
FINDING = "laggard_finding"
PROBED = "laggard_agent_probe_round_seconds"

FIRST_RANKS = ("rank=~", "[0-9]|[1-9][0-9]")
"""The first hundred ranks."""


MAX_RANKS = 1500
"""The most ranks that a query names: some 12,000 characters, where VictoriaMetrics takes 16,384 by default
(-search.maxQueryLen)."""


class Job(NamedTuple):
    """A job by its labels; `user` empty: not known. `cluster`: empty where its series have no such label; None: not
    known, whichever. Two clusters that write into one store may have jobs of one name."""

    job_id: str
    user: str = ""
    cluster: str | None = None


def selector(metric: str, job: Job | None, *more: tuple[str, str]) -> str:
    """`metric{job_id="...",user="..."}`; `more` are pairs of a label with its operator, and a value."""
    asked = [] if job is None else [("job_id=", job.job_id), *([("user=", job.user)] if job.user else [])]
    if job is not None and job.cluster is not None:
        asked.append(("cluster=", job.cluster))
    return f"{metric}{{{','.join(f'{name}{quoted(value)}' for name, value in (*asked, *more))}}}"


def parts(ranks: Sequence[int]) -> list[Sequence[int]]:
    """The ranks in parts that one query may name."""
    return [ranks[first : first + MAX_RANKS] for first in range(0, len(ranks), MAX_RANKS)]


def among(ranks: Iterable[int]) -> tuple[str, str]:
    """The matcher that selects these ranks."""
    return "rank=~", "|".join(map(str, ranks))


def quoted(text: str) -> str:
    """A string of PromQL, whatever is in it."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f'"{escaped}"'


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\x00"}


class Reading:
    """One job at the moment `now` (Unix seconds). Several queries are under way together."""

    def __init__(self, prometheus: Prometheus, pool: ThreadPoolExecutor, job: Job, now: float) -> None:
        self.prometheus, self.job, self.now = prometheus, job, now
        self._pool = pool

    def counters(
        self, moments: Moments, few: Sequence[int], ranks: Sequence[int] | None = None, outside_phases: bool = False
    ) -> Counters:
        """Returns the counters of `ranks`. None: of all ranks, but without the time outside phases unless
        `outside_phases`, because asking for that costs more than looking closely at too many ranks. `few`: the ranks
        whose step durations are asked for."""
        some = [()] if ranks is None else [(among(part),) for part in parts(ranks)]
        measured = tuple(few) if ranks is None else tuple(ranks[:100])
        metrics = {"steps": STEPS, "own": OWN_SECONDS, "input": INPUT_SECONDS}
        asked = {name: [selector(metric, self.job, *them) for them in some] for name, metric in metrics.items()}
        asked["few"] = [selector(STEP_SECONDS, self.job, among(measured))]
        if ranks is not None or outside_phases:
            other = ("phase=", "other")
            asked["other"] = [selector(PHASE_SECONDS, self.job, other, *them) for them in some]
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

    def phases(self, ranks: NDArray[np.int64], moments: Moments) -> Floats:
        """[T, R, len(PHASES)]: the counters of these ranks' phases; nan where there are none."""
        found = {phase: Table(moments) for phase in PHASES}
        for some in parts(ranks.tolist()):
            query = selector(PHASE_SECONDS, self.job, among(some))
            for phase, of_phase in _by_phase(self._over(query, moments)):
                if phase in found:
                    found[phase].add(of_phase)
        count = max(ranks.max(initial=0) + 1, *(each.count for each in found.values()))
        return np.stack([found[phase].of(count)[:, ranks] for phase in PHASES], axis=2)

    def states(self, counters: Counters, apart: float) -> tuple[RankState, ...]:
        """What the ranks do, as far as a store tells: whether each runs, waits in a collective, and gives signs of life
        and gets on, by how these moved in the last `apart` seconds. No clock is compared with another."""
        up = selector(UP, self.job)
        beats, progress = (selector(name, self.job) for name in (LAST_BEAT, LAST_PROGRESS))
        asked = [(f"timestamp({up})", self.now), (up, self.now)]
        asked += [(selector(IN_FLIGHT, self.job), self.now)]
        asked += [(query, moment) for query in (beats, progress) for moment in (self.now, self.now - apart)]
        values = list(self._pool.map(lambda each: self._values(each[0], each[1], counters.ranks), asked))
        stamps, runs, in_flight, beat, beat_before, got_on, got_on_before = values
        told = (runs == 0) | (np.isfinite(in_flight) & np.isfinite(got_on - got_on_before))
        runs = np.where((stamps > self.now - 2 * apart) & told, runs, np.nan)
        waits = np.where(in_flight >= apart / 2, in_flight, 0.0)
        moves, silent = got_on > got_on_before, np.where(beat == beat_before, apart, 0.0)
        group = f"job:0-{int(counters.ranks.max())}"
        columns = zip(runs, waits, moves, silent, last_steps(counters), strict=True)
        return tuple(_state(group, *map(float, each)) for each in columns)

    def who(self, ranks: Sequence[int]) -> dict[int, Labels]:
        """The labels that say who the ranks are, by laggard_rank_info; of several attempts the last."""
        found: dict[int, Labels] = {}
        for some in parts(ranks):
            part = self.prometheus.at(selector(INFO, self.job, among(some)), self.now)
            for number, labels in zip(rank_numbers(part.labels).tolist(), part.labels, strict=True):
                before = found.get(number)
                if before is None or small_number(labels.attempt) >= small_number(before.attempt):
                    found[number] = labels
        return found

    def _tables(self, asked: Mapping[str, Sequence[str]], moments: Moments) -> dict[str, Table]:
        """One of each, from one query or several."""

        def one(several: Sequence[str]) -> Table:
            found = Table(moments)
            for query in several:
                found.add(self._over(query, moments))
            return found

        return dict(zip(asked, self._pool.map(one, asked.values()), strict=True))

    def _over(self, query: str, moments: Moments) -> Series:
        return self.prometheus.over_time(query, moments.start, moments.end, moments.step)

    def _values(self, query: str, moment: float, ranks: NDArray[np.int64]) -> Floats:
        """[R]: an instant's values; nan where there is none."""
        held = np.full(int(ranks.max(initial=0)) + 1, np.nan)
        part = self.prometheus.at(query, moment)
        numbers = rank_numbers(part.labels)
        right = (numbers >= 0) & (numbers < len(held))
        held[numbers[right]] = part.values[right]
        found: Floats = held[ranks]
        return found


def _state(group: str, runs: float, waits: float, moves: float, silent: float, step: float) -> RankState:
    """A store has one number of all collectives: so they are one lane. Who waits in it, or gets on, has come there."""
    if runs != 1.0:
        return RankState("died" if runs == 0.0 else "unknown", int(step), None, None)
    came = int(waits > 0 or moves > 0)
    lanes = (LaneProgress("collective", group, came, came - (waits > 0)),)
    flight = InFlight("collective", group, 1, waits) if waits > 0 else None
    return RankState("running", int(step), None, flight, beat=BeatRow(silent, 1.0, "absent", lanes))


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
