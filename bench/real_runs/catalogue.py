"""Which runs there are: each job with each fault, drawn from nothing. Pure.

The jobs are those of bench/engines, whose scripts are as users write them. None of them knows of the fault: it comes
from the operating system, as it does in a cluster."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from engines.catalogue import BY_NAME, Engine

RANKS: Final = {"ddp": 3, "fsdp2": 3, "deepspeed_zero1": 2, "deepspeed_zero3": 2}
"""How many ranks a job has where that is not what the bench of engines gives it: each is a node of its own."""
JOBS: Final = (
    "ddp", "fsdp2", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3", "pipeline_1f1b", "pipeline_gpipe",
    "pipeline_interleaved", "pipeline_zero_bubble", "hugging_face_ddp", "lightning_trainer",
)  # fmt: skip
SINGLE_GROUP: Final = frozenset(job for job in JOBS if not job.startswith("pipeline_"))
"""Jobs of one group, in which all members of a collective take as long: nobody can know whose link is slow."""


class Fault(NamedTuple):
    """What befalls a job, and how it may be called. `kinds` are those of a culprit that is right; empty: nobody is at
    fault. `ends`: the job stands or dies of it."""

    name: str
    what: str
    kinds: tuple[str, ...]
    ends: bool = False


SLOW: Final = ("slow_host", "slow_compute")
FAULTS: Final = (
    Fault("none", "nothing", ()),
    Fault("all_slow", "a CPU quota of 40 % for every rank alike", ()),
    Fault("quota", "a CPU quota of 15 % for one rank, by its cgroup", SLOW),
    Fault("hog", "one rank is bound to a CPU, and four busy processes with it", SLOW),
    Fault(
        "taskset",
        "one rank and its three busy helpers are bound to one CPU at a lower priority",
        SLOW,
    ),
    Fault("link", "the link of one node has a tenth of the others' rate, both ways", ("slow_link",)),
    Fault("pair", "the way between two nodes has a tenth of the others' rate", ("slow_link",)),
    Fault("disk", "one rank reads its data through a throttle of 1 MiB/s", ("slow_input",)),
    Fault("sigstop", "one rank is stopped by SIGSTOP", ("hung",), ends=True),
    Fault("sigkill", "one rank is killed by SIGKILL", ("dead",), ends=True),
)
FAULT_OF: Final = {fault.name: fault for fault in FAULTS}


class Run(NamedTuple):
    """A job and a fault, by their names."""

    job: str
    fault: str


def runs() -> Iterator[Run]:
    """Every run. Jobs and faults go round, so that a bench that was stopped has some of each. Jobs of one group have no
    way between two nodes that the others do not use."""
    for turn in range(len(FAULTS)):
        for number, job in enumerate(JOBS):
            fault = FAULTS[(number + turn) % len(FAULTS)].name
            if fault != "pair" or job not in SINGLE_GROUP:
                yield Run(job, fault)


def engine_of(job: str) -> Engine:
    """The bench of engines' entry for a job, with the ranks that it has here."""
    if job == "deepspeed_zero2":
        return BY_NAME["deepspeed_zero1"]._replace(name=job, title="DeepSpeed, ZeRO 2", arguments=("2",))
    engine = BY_NAME[job]
    return engine._replace(ranks=RANKS.get(job, engine.ranks))


def victim_of(run: Run) -> int:
    """The rank that the fault befalls: the first stage of a pipeline alone reads data."""
    engine = engine_of(run.job)
    if run.fault == "disk" and engine.reader is not None:
        return engine.reader
    return engine.victim


def truth_of(run: Run) -> dict[str, object]:
    """The truth of a run, as it is written beside its recording."""
    fault, engine = FAULT_OF[run.fault], engine_of(run.job)
    return {
        "schema": "laggard.real-run/1",
        "job": run.job,
        "ranks": engine.ranks,
        "fault": run.fault,
        "what": fault.what,
        "victims": [victim_of(run)] if fault.kinds else [],
        "kinds": list(fault.kinds),
        "required": not (run.fault == "link" and run.job in SINGLE_GROUP),
    }
