"""Makes the series of a large job in a real Prometheus: OpenMetrics text, blocks made from it with promtool, and a
server that answers from these blocks."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from support.engines import prometheus_server

Numbers = NDArray[np.float64]

PHASES = {"input": 0.01, "forward": 0.05, "backward": 0.08, "optimizer": 0.02, "between_steps": 0.002, "other": 0.005}
WAIT = 0.03
RANKS_OF_NODE = 8
PART_RANKS = 32_768


class Job(NamedTuple):
    """A synchronous job. `slow`: ranks and how many more seconds they take in `phase`. `stalled_at`: the sample from
    which on nobody gets any further, since `hung` does not come, or the process of `gone` is; -1: never.
    `later`: by how many seconds its samples are later than those of others. `missing`: the samples from the one to
    before the other were never stored. `behind`: of the ranks from the first number on, the last samples, so many, have
    not come yet."""

    ranks: int
    samples: int = 13
    interval: float = 15.0
    slow: tuple[int, ...] = ()
    phase: str = "forward"
    excess: float = 0.008
    hung: int = -1
    stalled_at: int = -1
    gone: int = -1
    later: float = 0.0
    missing: tuple[int, int] = (0, 0)
    behind: tuple[int, int] = (0, 0)
    role: str = "dp"
    job_id: str = "train"
    user: int = 1000
    seed: int = 0


class Column(NamedTuple):
    """The samples of one metric for each rank: [T, R], and the labels beside the rank's."""

    name: str
    kind: str
    labels: str
    values: Numbers


def columns(job: Job, end: float) -> Iterator[Column]:
    """The job's metrics as agents export them; the last sample is at `end` (Unix seconds)."""
    generator = np.random.default_rng(job.seed)
    shape = (job.samples, job.ranks)
    names = list(PHASES)
    means = np.empty((*shape, len(names)))
    for place, seconds in enumerate(PHASES.values()):
        means[:, :, place] = seconds * (1 + 0.004 * generator.standard_normal(shape))
    for rank in job.slow:
        means[:, rank, names.index(job.phase)] += job.excess
    busy = means.sum(axis=2)
    step = busy.max(axis=1, keepdims=True) + WAIT
    steps = np.maximum(1, np.rint(job.interval / step))
    if job.stalled_at >= 0:
        steps[job.stalled_at :] = 0
    counted = 1000 + np.cumsum(steps, axis=0)
    phases = 100.0 + np.cumsum(means * steps[:, :, None], axis=0)
    times = end - job.interval * np.arange(job.samples)[::-1, None]
    stalled = np.clip(np.arange(job.samples) - job.stalled_at, 0, None)[:, None] * job.interval
    stalled = stalled * (job.stalled_at >= 0)
    came = np.arange(job.ranks)[None, :] != job.hung
    ones = np.ones(shape)
    up = np.where((np.arange(job.ranks)[None, :] == job.gone) & (stalled > 0), 0.0, 1.0)
    yield Column("laggard_rank_steps", "counter", "", counted * ones)
    yield Column("laggard_rank_step_seconds", "counter", "", 100.0 + np.cumsum(steps * step, axis=0) * ones)
    yield Column("laggard_rank_own_seconds", "counter", "", phases[:, :, 1:].sum(axis=2))
    yield Column("laggard_rank_input_seconds", "counter", "", phases[:, :, 0])
    for place, name in enumerate(names):
        yield Column("laggard_rank_phase_seconds", "counter", f',phase="{name}"', phases[:, :, place])
    waited = np.cumsum(steps * (step - busy), axis=0)
    yield Column("laggard_rank_collective_seconds", "counter", f',op="all_reduce",group="{job.role}"', waited)
    yield Column("laggard_rank_collectives", "counter", f',op="all_reduce",group="{job.role}"', counted * ones)
    yield Column("laggard_rank_last_progress_timestamp_seconds", "gauge", "", (times - stalled) * ones)
    yield Column("laggard_rank_last_beat_timestamp_seconds", "gauge", "", times * ones)
    yield Column("laggard_rank_in_flight_seconds", "gauge", "", stalled * came)
    yield Column("laggard_rank_up", "gauge", "", up)
    yield Column("laggard_rank_info", "gauge", f',world_size="{job.ranks}",attempt="0"', ones)


def write_openmetrics(jobs: Sequence[Job], end: float, file: TextIO, part: int = 0, parts: int = 1) -> None:
    """Writes one of `parts` equal parts of each job's ranks."""
    named = ""
    for of_jobs in zip(*(columns(job, end + job.later) for job in jobs), strict=True):
        if of_jobs[0].name != named:
            file.write(f"# TYPE {of_jobs[0].name} {of_jobs[0].kind}\n")
        named = of_jobs[0].name
        for job, column in zip(jobs, of_jobs, strict=True):
            ranks = range(job.ranks * part // parts, job.ranks * (part + 1) // parts)
            file.writelines(_lines(job, column, ranks, end + job.later, "{:.3f}".format))
    file.write("# EOF\n")


def _lines(job: Job, column: Column, ranks: range, end: float, when: Callable[[float], str]) -> Iterator[str]:
    """The samples of each of the ranks. `when`: a time as the format has it, of Unix seconds."""
    times = [when(end - job.interval * back) for back in range(job.samples)][::-1]
    sample = f"{column.name}_total" if column.kind == "counter" else column.name
    for rank in ranks:
        node = rank // RANKS_OF_NODE
        more = f',hostname="n{node}",local_rank="{rank % RANKS_OF_NODE}"' if column.name.endswith("_info") else ""
        labels = (
            f'{sample}{{job_id="{job.job_id}",user="{job.user}",rank="{rank}"{column.labels}{more}'
            f',instance="n{node}:19400",job="laggard"}} '
        )
        last = job.samples - (job.behind[1] if rank >= job.behind[0] else 0)
        stored = [n for n in range(last) if not job.missing[0] <= n < job.missing[1]]
        values = column.values[stored, rank].tolist()
        yield "".join(f"{labels}{v:.9g} {times[n]}\n" for v, n in zip(values, stored, strict=True))


def make_blocks(jobs: Sequence[Job], end: float, folder: Path) -> Path:
    """A folder of blocks that Prometheus can serve; the last samples are at `end`. promtool takes some 110 KiB of
    memory for each rank, and so makes at most PART_RANKS at once: blocks of several parts overlap, which Prometheus
    allows."""
    text, data = folder / "metrics.txt", folder / "data"
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: apt-get install prometheus"
    parts = -(-sum(job.ranks for job in jobs) // PART_RANKS)
    for part in range(parts):
        with open(text, "w") as file:
            write_openmetrics(jobs, end, file, part, parts)
        command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    text.unlink()
    return data


def prometheus(data: Path) -> contextlib.AbstractContextManager[str]:
    """The URL of a real Prometheus that scrapes nothing and answers from `data`."""
    return prometheus_server(data.parent, {}, data)
