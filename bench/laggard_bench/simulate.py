"""Runs a job step by step, with its faults and, on the same noise, without them. Pure."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard_bench.faults import Fault, Part
from laggard_bench.program import GPU, HOST, INPUT, TRANSFER, Group, Program, Times

Shape = Callable[[int, Program], Times | None]
"""By step and program: the factor [N] of each event's duration that the design of the job makes."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """The ordinary noise of a healthy job. Shares are standard deviations of a logarithm, unless told otherwise.
    `silicon`: between GPUs, for good; `pauses`: the chance of a pause in a rank's step, `pause` its mean share of the
    step; `congestion`: the chance that a transfer meets other traffic."""

    silicon: float = 0.005
    step: float = 0.003
    rank: float = 0.004
    event: float = 0.008
    host: float = 0.08
    transfer: float = 0.03
    pauses: float = 0.002
    pause: float = 0.03
    congestion: float = 0.004


QUIET = Noise(0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Job:
    """`programs`: those that the steps run, `of_step`: which. `world`: the number of ranks that there can be."""

    world: int
    programs: tuple[Program, ...]
    of_step: tuple[int, ...]
    noise: Noise
    shape: Shape = lambda step, program: None

    @property
    def steps(self) -> int:
        return len(self.of_step)

    @functools.cached_property
    def groups(self) -> dict[str, Group]:
        """Those of all programs, by name: a step need not have the groups of the steps before it."""
        return {name: group for program in self.programs for name, group in program.groups.items()}


@dataclasses.dataclass(frozen=True)
class Run:
    """`times`: by step, [N] as it happened. `ends`: [steps, S], when the last rank ended each step, in the scenarios:
    as it happened, without any fault; where there are several faults, without each one, and with each one alone."""

    times: list[Times]
    ends: NDArray[np.float64]


class _Additions:
    """What each part adds to each program, computed once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._known: dict[tuple[int, int, int], Times] = {}

    def of(self, fault: int, part: int, number: int, program: Program) -> Times:
        key = fault, part, number
        if key not in self._known:
            self._known[key] = self._faults[fault].parts[part].added(program)
        return self._known[key]


def run(job: Job, faults: Sequence[Fault], rng: np.random.Generator) -> Run:
    scenarios = 2 + (2 * len(faults) if len(faults) > 1 else 0)
    free = np.zeros((2, job.world, scenarios))
    spread = np.clip(rng.normal(0.0, 1.0, job.world), -2.0, 2.0)  # of a model that is sorted by its maker
    silicon = np.exp(job.noise.silicon * spread)
    additions, times, ends = _Additions(faults), [], np.zeros((job.steps, scenarios))
    for step, number in enumerate(job.of_step):
        program = job.programs[number]
        ranks = np.array(program.ranks)
        usual = _noisy(job, program, step, silicon, rng)
        duration = np.repeat(usual[:, None], scenarios, axis=1)
        for place, fault in enumerate(faults):
            more = _added(additions, fault, place, number, program, step)
            if more is not None:
                duration[:, _acting(place, len(faults))] += more[:, None]
        _joining(free, ranks, step and job.programs[job.of_step[step - 1]].ranks)
        happened = program.run(free[:, ranks].reshape(2 * len(ranks), scenarios), duration)
        free[:, ranks] = happened[program.exit].reshape(2, len(ranks), scenarios)
        ends[step] = free[0, ranks].max(axis=0)
        times.append(np.ascontiguousarray(happened[:, 0]))
        if not np.isfinite(ends[step, 0]):
            return Run(times, ends[: step + 1])
    return Run(times, ends)


def _acting(place: int, faults: int) -> list[int]:
    """The scenarios in which a fault acts."""
    if faults == 1:
        return [0]
    return [0, *(2 + other for other in range(faults) if other != place), 2 + faults + place]


def _joining(free: Times, ranks: NDArray[np.int64], before: Sequence[int] | int) -> None:
    """Ranks that come into the job begin where the others are."""
    if isinstance(before, int):
        return
    new = np.setdiff1d(ranks, np.array(before))
    if len(new):
        free[:, new] = free[:, np.array(before)].max(axis=(0, 1))


def _added(additions: _Additions, fault: Fault, place: int, number: int, program: Program, step: int) -> Times | None:
    more: Times | None = None
    for part in range(len(fault.parts)):
        share = fault.share(part, step)
        if share:
            each = additions.of(place, part, number, program) * share
            more = each if more is None else more + each
    if fault.stop_step == step:
        more = np.zeros(len(program.duration)) if more is None else more
        for rank in fault.stops:
            mine = np.flatnonzero((program.owner == rank) & (program.kind == GPU))
            more[mine[len(mine) // 2]] = np.inf
    return more


def _noisy(job: Job, program: Program, step: int, silicon: Times, rng: np.random.Generator) -> Times:
    noise, count = job.noise, len(program.duration)
    usual = program.duration.copy()
    shape = job.shape(step, program)
    if shape is not None:
        usual *= shape
    by_rank = silicon * np.exp(rng.normal(0.0, noise.rank, job.world) + rng.normal(0.0, noise.step))
    gpu, host = program.kind == GPU, (program.kind == HOST) | (program.kind == INPUT)
    usual[gpu] *= (by_rank[program.owner] * np.exp(rng.normal(0.0, noise.event, count)))[gpu]
    usual[host] *= np.exp(rng.normal(0.0, noise.host, count))[host]
    transfer = program.kind == TRANSFER
    busy = np.exp(rng.normal(0.0, noise.transfer, count)) * np.where(
        rng.random(count) < noise.congestion, rng.uniform(1.2, 2.5), 1.0
    )
    usual[transfer] *= busy[_transfer_of(program)][transfer]
    if noise.pauses:
        _pause(usual, program, noise, rng)
    return usual


def _transfer_of(program: Program) -> NDArray[np.int64]:
    """[N]: by event, the transfer that it is of; members share what befalls it."""
    found: NDArray[np.int64] | None = getattr(program, "_transfer_of", None)
    if found is None:
        found = np.zeros(len(program.duration), np.int64)
        for number, each in enumerate(program.transfers):
            found[list(each.events)] = number
        program._transfer_of = found  # type: ignore[attr-defined]
    return found


def _pause(usual: Times, program: Program, noise: Noise, rng: np.random.Generator) -> None:
    ranks = np.array(program.ranks)
    struck = ranks[rng.random(len(ranks)) < noise.pauses]
    whole = usual[program.kind == GPU].sum() / len(ranks)
    for rank in struck.tolist():
        mine = np.flatnonzero((program.owner == rank) & (program.kind == GPU))
        usual[rng.choice(mine)] += rng.exponential(noise.pause) * whole


GRID = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 9, 14, 20, 30)


def magnitude_for(program: Program, part: Part, target: float) -> Part:
    """The part with the magnitude that makes the step longer by the share `target`, as far as it can: on a step without
    noise, which has what runs beside the work hidden as the real one."""
    first = _first_guess(program, part, target)
    tried = [0.0, *(first * factor for factor in GRID)]
    duration = np.stack([program.duration, *(_with(part, m).added(program) + program.duration for m in tried[1:])], 1)
    free = np.zeros((len(program.entry), len(tried)))
    once = program.run(free, duration)[program.exit]
    twice = program.run(once, duration)[program.exit]
    ranks = len(program.ranks)
    seconds = twice[:ranks].max(axis=0) - once[:ranks].max(axis=0)
    longer = np.maximum.accumulate(seconds / seconds[0] - 1.0)
    return _with(part, float(np.interp(target, longer + np.arange(len(longer)) * 1e-12, tried)))


def _with(part: Part, magnitude: float) -> Part:
    return dataclasses.replace(part, magnitude=magnitude)


def _first_guess(program: Program, part: Part, target: float) -> float:
    step = float(program.run(np.zeros((len(program.entry), 1)), program.duration[:, None])[program.exit].max())
    if part.how in ("host", "input"):
        return target * step
    unit = _with(part, 1.0).added(program)
    owner = program.owner[unit > 0]
    if not len(owner):
        return 1.0
    most = float(np.bincount(owner, unit[unit > 0]).max())
    return target * step / most if most > 0 else 1.0


def lengthening(run_: Run, with_it: int, without: int, active: NDArray[np.float64]) -> tuple[float, float]:
    """By how much the steps in which a fault acts are longer in one scenario than in another, and the same of the whole
    run, as shares."""
    longer = np.diff(run_.ends[:, with_it], prepend=0.0)
    usual = np.diff(run_.ends[:, without], prepend=0.0)
    acting = active[: len(longer)] > 0
    if not acting.any():
        return 0.0, 0.0
    more = longer - usual
    return float(more[acting].sum() / usual[acting].sum()), float(more.sum() / usual.sum())
