"""Jobs of which something is slow: always, for a part of the run, or now and then; and links."""

import random

from written_jobs.case import COMPUTE, HOST, INPUT, LINK, case, maybe, who
from written_jobs.job import Item, Job
from written_jobs.layouts import (
    BASE,
    LONG,
    PASSES,
    Seconds,
    data_parallel,
    ddp,
    elastic,
    experts,
    more,
    pipeline,
    scale,
    sharded,
    slower,
    tensor_by_data,
    times,
)

ANY = (*COMPUTE, "slow_input")


@case(who(13))
def recovered() -> Job:
    """Rank 13 is 25 % slower for 360 of 400 steps, and well in the last 20."""
    return ddp(400, slower(1.25, 13, steps=range(20, 380)), seed=1)


@case(who(14), maybe(3), maybe(9))
def moved() -> Job:
    """A tenant moves: rank 3 is 20 % slower for 100 steps, then rank 9, then rank 14."""
    return ddp(300, times(lambda rank, step: 1.2 if rank == (3, 9, 14)[step // 100] else 1), seed=2)


@case(*map(maybe, range(16)), verdicts=("fail", "unknown"))
def moves_often() -> Job:
    """Another rank is 20 % slower each 25 steps: the job loses a fifth of its time."""
    order = random.Random(5).sample(range(16), 12)
    return ddp(300, times(lambda rank, step: 1.2 if rank == order[step // 25] else 1), seed=3)


@case(who(9))
def thermal_drift() -> Job:
    """Rank 9 becomes slower bit by bit, by 15 % in 300 steps."""
    return ddp(300, times(lambda rank, step: 1 + 0.15 * step / 300 if rank == 9 else 1), seed=4)


@case(who(9))
def thermal_sawtooth() -> Job:
    """Rank 9 heats up to 15 % and cools down each 70 steps; the recording ends just after it cooled."""
    return ddp(285, times(lambda rank, step: 1 + 0.15 * min(1.0, (step % 70) / 60) if rank == 9 else 1), seed=5)


@case(who(6))
def every_second() -> Job:
    """Rank 6 takes 20 % longer in each second step: its power cap swings."""
    return ddp(200, slower(1.2, 6, steps=range(1, 200, 2)), seed=6)


@case(who(*range(8, 16)))
def half_of_the_machines() -> Job:
    """The second of two nodes is 10 % slower."""
    return ddp(120, slower(1.10, *range(8, 16)), seed=7)


@case(who(*range(16, 24)), who(*range(24, 32)), maybe(*range(16, 32)))
def mixed_hardware_half() -> Job:
    """Two of four nodes have slower GPUs, by 25 %."""
    return ddp(100, slower(1.25, *range(16, 32)), ranks=32, seed=8)


@case(*(maybe(*range(8 * node, 8 * node + 8)) for node in range(3, 8)), verdicts=("unknown", "fail"))
def mixed_hardware_most() -> Job:
    """Five of eight nodes have slower GPUs, by 25 %: the others wait a fifth of the time."""
    return ddp(100, slower(1.25, *range(12, 32)), ranks=32, per_node=4, seed=9)


@case(who(7), who(15), who(23), who(31))
def hot_slot() -> Job:
    """The GPU in slot 7 of each chassis is 8 % slower; parts of a tensor group are equal work."""
    return tensor_by_data(4, 8, slower(1.08, *range(7, 32, 8)), seed=10)


@case(who(2), who(9))
def two_groups() -> Job:
    """Two ranks of tensor groups of four are each 12 % slower."""
    return tensor_by_data(4, 4, slower(1.12, 2, 9), seed=11)


@case(who(2), who(6))
def same_place_by_chance() -> Job:
    """Two ranks are 12 % slower, as it happens in the same place of their tensor groups."""
    return tensor_by_data(2, 4, slower(1.12, 2, 6), per_node=4, seed=87)


@case(who(1))
def two_ranks_slow() -> Job:
    """Of two ranks the second is 10 % slower in all it computes."""
    return ddp(150, slower(1.1, 1), ranks=2, per_node=2, seed=12)


@case(who(5))
def one_node() -> Job:
    """Rank 5 of a node's eight is 8 % slower."""
    return ddp(120, slower(1.08, 5), ranks=8, seed=14)


@case(who(6))
def backward_only() -> Job:
    """Rank 6 is 15 % slower in backward alone, whose buckets are reduced beside it."""
    return ddp(120, slower(1.15, 6, phases=("backward",)), seed=15)


@case(who(2))
def preempted() -> Job:
    """The job stands still for 900 s after step 59, and rank 2 is 12 % slower from then on."""
    return ddp(
        120,
        slower(1.12, 2, steps=range(60, 120)),
        after=lambda job, step: job.pause(900 if step == 59 else 0),
        seed=16,
    )


@case(who(3), verdicts=("fail", "unknown"))
def long_steps() -> Job:
    """Six steps of 90 s: rank 3 takes 30 % longer in each."""
    return ddp(6, slower(1.3, 3), base=LONG, seed=18)


@case(who(3))
def long_steps_nine() -> Job:
    """Nine steps of 90 s after a resume: rank 3 takes 30 % longer in each."""
    return ddp(range(5000, 5009), slower(1.3, 3), base=LONG, buckets=4, seed=19)


@case(who(11))
def hot_experts_slow_rank() -> Job:
    """Experts drift, and rank 11 is 15 % slower in all it computes."""
    return experts(lambda rank: 1.15 if rank == 11 else 1.0, seed=39)


@case(who(10, kinds=ANY))
def gc_by_one() -> Job:
    """Rank 10 alone collects garbage for 300 ms every 50 steps."""
    return ddp(400, more(0.3, "forward", lambda rank, step: rank == 10 and step % 50 == 37), seed=41)


@case(who(5))
def batches_by_hardware() -> Job:
    """Nodes of two kinds get 8 and 12 sequences, and take as long; rank 5 is 15 % slower than its kind."""
    return ddp(150, slower(1.15, 5), work=lambda rank, step: (8 if rank < 8 else 12) * 2048, seed=44)


@case(who(5, kinds=("slow_compute",)))
def few_more_tokens() -> Job:
    """Rank 5 gets 3 % more tokens, and its GPU is 10 % slower: the tokens explain a quarter of that."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if rank == 5:
            scale(seconds, 1.03 * 1.10, PASSES)
            scale(seconds, 1.02, ("optimizer",))

    return ddp(150, change, work=lambda rank, step: 8192 if rank != 5 else 8438, seed=45)


@case(who(11))
def joined_late() -> Job:
    """Ranks 8 to 15 join at step 60, in a new group; rank 11 is 15 % slower."""
    return elastic(180, 60, slower(1.15, 11), seed=56)


@case(who(3))
def joined_just_now() -> Job:
    """Ranks 8 to 15 join 30 steps before the end, and compile; rank 3 is 15 % slower."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if rank == 3:
            scale(seconds, 1.15)
        if rank >= 8 and step < 173:
            seconds["forward"] += 3.0

    return elastic(200, 170, change, seed=57)


@case(who(13))
def other_numbers_of_collectives() -> Job:
    """The first rank of each node gathers metrics in a group of their own; rank 13 is 12 % slower."""
    job = Job(32, 8, {"world": ("dp", range(32)), "leaders": ("", range(0, 32, 8))}, seed=59)
    change = slower(1.12, 13)

    def programme(rank: int, step: int) -> list[Item]:
        seconds = dict(BASE)
        change(rank, step, seconds)
        gathers = [("coll", "leaders", "all_gather", 4096), ("coll", "leaders", "broadcast", 4096)]
        return data_parallel("world", seconds) + (gathers if rank % 8 == 0 else [])

    return job.run(range(100), programme)


@case(who(19))
def odd_layout() -> Job:
    """Tensor groups of 3, 5 stages and 2 replicas on nodes of 8: rank 19 is 20 % slower."""
    return pipeline(2, 5, 3, slower(1.2, 19), seed=61)


@case(who(3))
def pipeline_twice() -> Job:
    """Rank 3, of stage 1 and replica 1, is 20 % slower."""
    return pipeline(2, 4, 1, slower(1.2, 3), per_node=4, seed=63)


@case(verdicts=("unknown",))
def one_pipeline_from_the_start() -> Job:
    """Stage 2 of a single pipeline is 40 % slower from the first step on: layers or a GPU, nobody can know."""
    return pipeline(1, 4, 1, slower(1.4, 2), per_node=1, seed=64)


@case(who(6, kinds=LINK, within=(2, 6, 10, 14)))
def slow_reduce_scatter() -> Job:
    """Rank 6's adapter is slow in one direction: its group's reduce-scatters take three times as long."""
    slow = ("shard:2", "reduce_scatter")
    return sharded(
        transfer=lambda group, op, size, step, usual: usual * (3 if (group, op) == slow else 1),
        seed=66,
    )


@case(who(3, 11, kinds=LINK), maybe(3, kinds=LINK), maybe(11, kinds=LINK))
def slow_rail() -> Job:
    """The way of rail 3 between two nodes takes three times as long."""
    return tensor_by_data(
        2, 8, transfer=lambda group, op, size, step, usual: usual * (3 if group == "dp:3" else 1), seed=67
    )


@case(maybe(*range(16), kinds=LINK), verdicts=("ok", "unknown", "fail"))
def congested_at_times() -> Job:
    """Others' traffic makes all-reduces take 30 to 80 % longer in a third of the steps, for all."""
    rng = random.Random(68)
    busy = [rng.random() < 0.33 for _ in range(400)]

    def transfer(group: str, op: str, size: int, step: int, usual: float) -> float:
        return usual * (rng.uniform(1.3, 1.8) if busy[step] else 1)

    return ddp(200, transfer=transfer, rate=4e9, seed=68)


@case(who(6, kinds=INPUT))
def loader_runs_dry() -> Job:
    """Rank 6's loader is too slow by an eighth: its queue is empty every eighth step."""
    return ddp(240, more(0.06, "input", lambda rank, step: rank == 6 and step % 8 == 7), seed=69)


@case(who(16, 20, kinds=INPUT, within=range(16, 24)), maybe(16, kinds=INPUT), maybe(20, kinds=INPUT))
def node_loads_slowly() -> Job:
    """Only the first of each tensor group loads, and the two of node 2 wait for its storage."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        seconds["input"] = 0.02 if rank in (16, 20) else 0.003 if rank % 4 == 0 else 0.0

    return tensor_by_data(8, 4, change, seed=70, steps=100)


@case(who(10, kinds=ANY), verdicts=("fail", "unknown"))
def paused_in_the_first_half() -> Job:
    """Rank 10 pauses for 0.3 s every 10 steps in the first half, then no more."""
    return ddp(400, more(0.3, "forward", lambda rank, step: rank == 10 and step < 200 and step % 10 == 7), seed=81)


@case(who(7, kinds=INPUT), verdicts=("fail", "unknown"))
def one_long_stall() -> Job:
    """Rank 7's loader hangs once, for as long as the 300 other steps together."""
    return ddp(300, more(30.0, "input", lambda rank, step: rank == 7 and step == 150), seed=82)


@case(who(*range(8, 16), kinds=HOST), *(maybe(rank, kinds=HOST) for rank in range(8, 16)))
def disk_of_one_node() -> Job:
    """All ranks save their shards every 40 steps for 1 s; node 1, whose disk is slow, for 4 s."""
    job = Job(32, 8, {"world": ("dp", range(32))}, seed=83)

    def programme(rank: int, step: int) -> list[Item]:
        saves: list[Item] = [("work", "checkpoint", 4.0 if rank // 8 == 1 else 1.0)] if step % 40 == 39 else []
        return saves + data_parallel("world", BASE, buckets=2)

    return job.run(range(240), programme)


@case(who(31))
def slow_and_last_to_log() -> Job:
    """The last rank logs for 1 % of the step, and its GPU is 10 % slower."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if rank == 31:
            scale(seconds, 1.1)
            seconds["between_steps"] += 0.001

    return ddp(120, change, ranks=32, seed=88)


@case(who(0, kinds=("slow_host", "uneven_work")))
def disk_of_rank_zero() -> Job:
    """The disk of rank 0's node is slow: it reads for 12 ms between all steps, the others for 3 ms."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        seconds["between_steps"] = 0.012 if rank == 0 else 0.003

    return ddp(150, change, seed=89)


NINE = (0, 1, 3, 5, 8, 9, 11, 12, 14)


@case(*map(maybe, NINE), verdicts=("fail", "unknown"))
def nine_of_sixteen() -> Job:
    """Nine of 16 ranks, all over the nodes, are 15 % slower for their firmware."""
    return ddp(120, slower(1.15, *NINE), seed=91)


@case(who(4), who(12))
def two_ranks_by_turns() -> Job:
    """Ranks 4 and 12 throttle by turns, each for 20 steps of 40: the job always waits for one of them."""

    def change(rank: int, step: int, seconds: Seconds) -> None:
        if rank == (4 if step // 20 % 2 else 12):
            scale(seconds, 1.2)

    return ddp(240, change, seed=93)
