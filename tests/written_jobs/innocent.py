"""Jobs in which nothing is wrong, though it may look so: by design, by chance, or since it is over."""

import math
import random

from written_jobs.case import case
from written_jobs.job import Item, Job
from written_jobs.layouts import (
    BASE,
    BUCKET_BYTES,
    PASSES,
    Seconds,
    data_parallel,
    ddp,
    experts,
    more,
    pipeline,
    scale,
    slower,
    times,
)


@case()
def two_ranks_well() -> Job:
    """Two ranks are well; hiccups come in spells on both."""
    rng, level = random.Random(3), [0.0, 0.0]

    def change(rank: int, step: int, seconds: Seconds) -> None:
        level[rank] = 0.9 * level[rank] + rng.gauss(0, 0.012)
        scale(seconds, 1 + abs(level[rank]))

    return ddp(200, change, ranks=2, per_node=2, seed=13)


@case()
def preempted_well() -> Job:
    """A healthy job stands still three times, for 60 to 900 s."""
    pauses = {30: 60, 60: 900, 90: 300}
    return ddp(120, after=lambda job, step: job.pause(pauses.get(step, 0)), seed=17)


@case()
def resumed_compile() -> Job:
    """A job resumes at step 5000, and rank 4 compiles for 20 s in each of the first two of twelve steps."""
    first = more(20, "forward", lambda rank, step: rank == 4 and step < 5002)
    return ddp(range(5000, 5012), first, buckets=4, seed=20)


@case(verdicts=("unknown",))
def short_job() -> Job:
    """Five steps of 0.1 s tell nothing."""
    return ddp(5, ranks=8, seed=21)


@case(verdicts=("unknown",))
def world_of_one() -> Job:
    """One rank cannot be compared."""
    job = Job(1, 8, {"world": ("dp", range(1))}, seed=22)
    return job.run(range(60), lambda rank, step: [("work", phase, seconds) for phase, seconds in BASE.items()])


@case()
def shard_writers() -> Job:
    """Each node's first rank saves a shard every 20 steps, which no phase names: the script's choice."""
    return ddp(200, more(0.6, "between_steps", lambda rank, step: rank % 8 == 0 and step % 20 == 19), ranks=32, seed=30)


@case()
def last_rank_logs() -> Job:
    """The last rank writes the log each 10 steps, as Megatron-LM's does, which no phase names."""
    return ddp(300, more(0.08, "between_steps", lambda rank, step: rank == 31 and step % 10 == 9), ranks=32, seed=31)


@case()
def last_rank_logs_always() -> Job:
    """The last rank writes metrics after each step, for 6 ms of 105: the script's choice, as rank 0's would be."""
    return ddp(150, more(0.006, "between_steps", lambda rank, step: rank == 31), ranks=32, seed=32)


@case()
def every_rank_evaluates() -> Job:
    """All ranks evaluate their share every 10 steps, which no phase names, for 0.5 s and 10 % more or less."""
    rng = random.Random(34)

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if step % 10 == 9:
            seconds["between_steps"] += 0.5 * rng.uniform(0.9, 1.1)

    return ddp(200, change, seed=34)


@case()
def accumulated() -> Job:
    """Eight microbatches a step have other lengths each: their sums differ by chance."""
    rng = random.Random(35)
    lengths = times(lambda rank, step: sum(rng.lognormvariate(0, 0.4) for _ in range(8)) / 8.66, PASSES)
    return ddp(120, lengths, micro=8, seed=35)


@case()
def packed() -> Job:
    """Sequences are packed: as many tokens in each step, and attention by the squares of their lengths."""
    rng = random.Random(36)

    def change(rank: int, step: int, seconds: Seconds) -> None:
        left, squares = 8192, 0.0
        while left > 0:
            length = min(left, int(rng.lognormvariate(6.5, 1.0)) + 1)
            squares += length**2
            left -= length
        scale(seconds, 0.8 + 0.4 * squares / (8192 * 1800), PASSES)

    return ddp(200, change, work=lambda rank, step: 8192, seed=36)


@case()
def long_documents_come_in_runs() -> Job:
    """Lengths of sequences are alike over some 15 steps of a rank, and no work is recorded."""
    rng, level = random.Random(37), [0.0] * 16

    def change(rank: int, step: int, seconds: Seconds) -> None:
        level[rank] = 0.93 * level[rank] + rng.gauss(0, 0.03)
        scale(seconds, math.exp(level[rank]), PASSES)

    return ddp(300, change, seed=37)


@case()
def hot_experts_drift() -> Job:
    """Experts become hotter and cooler slowly, the same in both groups."""
    return experts(lambda rank: 1.0, seed=38)


@case()
def gc_by_all() -> Job:
    """Each rank collects garbage for 120 ms every 40 to 60 steps, by itself."""
    rng = random.Random(40)
    period = [rng.randint(40, 60) for _ in range(16)]
    begin = [rng.randint(0, 40) for _ in range(16)]

    def due(rank: int, step: int) -> bool:
        return step % period[rank] == begin[rank] % period[rank]

    return ddp(400, more(0.12, "forward", due), seed=40)


@case()
def async_checkpoint() -> Job:
    """Checkpoints are written beside training: all ranks are slower in the five steps after each, by chance."""
    rng = random.Random(42)
    slowed = times(lambda rank, step: 1 + rng.uniform(0.05, 0.2) if step % 40 < 5 and step >= 40 else 1)
    return ddp(300, slowed, seed=42)


@case()
def longer_for_all() -> Job:
    """Sequences become twice as long at step 100, and again at 150: a curriculum."""
    return ddp(200, times(lambda rank, step: 1 if step < 100 else 2 if step < 150 else 4, PASSES), seed=43)


@case()
def rank_zero_logs_in_other() -> Job:
    """Rank 0 logs for 5 % of each step, which no phase names; in one step all ranks spend a second so."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        seconds["other"] = 1.0 if step == 71 else 0.005 if rank == 0 else 0.0002

    return ddp(140, change, seed=47)


@case()
def join_uneven() -> Job:
    """Rank 3 has five batches fewer, and shadows the others' all-reduces from then on."""
    job, buckets = Job(8, 8, {"world": ("dp", range(8))}, seed=48), range(3)

    def programme(rank: int, step: int) -> list[Item]:
        if rank != 3 or step < 100:
            return data_parallel("world", BASE)
        issues: list[Item] = [("issue", f"b{bucket}", "world", "all_reduce", BUCKET_BYTES) for bucket in buckets]
        return [*issues, *(("wait", f"b{bucket}") for bucket in buckets)]

    return job.run(range(105), programme)


@case()
def replaced_rank_warms_up() -> Job:
    """Rank 5 is replaced 15 steps before the end, and compiles for three steps of 8 s: it is over since."""
    return ddp(165, more(8.0, "forward", lambda rank, step: rank == 5 and 150 <= step < 153), seed=58)


@case()
def odd_layout_well() -> Job:
    """Tensor groups of 3, 5 stages and 2 replicas on nodes of 8; stages differ by up to 30 %."""
    return pipeline(2, 5, 3, stages=(1.3, 1.0, 1.05, 1.0, 1.2), seed=62)


@case()
def pipeline_slack() -> Job:
    """Rank 14 of the last stage takes 8 % longer, and nobody waits for it: the first stage is 40 % longer."""
    return pipeline(4, 4, 1, slower(1.08, 14, phases=PASSES), stages=(1.4, 1.0, 1.0, 1.0), per_node=4, seed=90)


@case()
def checkpoint_by_rank_zero() -> Job:
    """Rank 0 saves a checkpoint for 2 s every 50 steps, which no phase names: the script's choice."""
    return ddp(260, more(2.0, "between_steps", lambda rank, step: rank == 0 and step % 50 == 49), seed=104)
