"""Draws a case: a job, what befalls it, how it was recorded, and the truth. Seed and name give the same case again."""

import dataclasses
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard_bench.cluster import Cluster
from laggard_bench.draw import Drawn, draw_cluster, draw_design
from laggard_bench.faults import Fault, culprit_of, half_of_a_stage, machine, same_ends, stands_out
from laggard_bench.lasting import Lasting, shape_with
from laggard_bench.layouts import Places, build
from laggard_bench.program import GPU, Program, Times
from laggard_bench.recording import Clocks, Identity, Losses, recorder_tells, write
from laggard_bench.simulate import Job, Noise, Run, lengthening, run
from laggard_bench.stories import FAMILIES, Story, tell

MAX_LINES = 110_000
"""About how many lines a recording has; what decides how many steps it has, within MIN_STEPS and MAX_STEPS."""
MIN_STEPS, MAX_STEPS = 60, 200
MIN_STEPS_HUGE = 40
"""The fewest steps of a job of thousands of ranks."""
MAX_MICROS = 64
"""The most micro-batches of a rank that are told apart."""
HIDDEN_SHARE = 0.005
"""The lengthening of a step below which nobody need name a fault: less than what steps differ by themselves."""


def names(seed: int, count: int) -> list[str]:
    """The names of a set's cases: each family as often as its weight says, in an order that the seed draws."""
    rng = np.random.default_rng([seed, 0])
    weights = np.array([weight for _, weight in FAMILIES], float)
    share = np.cumsum(weights / weights.sum() * count)
    counts = np.diff(np.round(share), prepend=0).astype(int)
    drawn = [name for (name, _), times in zip(FAMILIES, counts, strict=True) for _ in range(times)]
    return [f"{place:04d}-{drawn[which]}" for place, which in enumerate(rng.permutation(len(drawn)))]


def number_of(name: str) -> str:
    """What the case's folder and its recording are called: its name without what befalls it."""
    return name.split("-", 1)[0]


def draw(seed: int, name: str) -> tuple[Drawn, np.random.Generator]:
    """The job of a case, and what draws all that follows."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    place, family = name.split("-", 1)
    return draw_design(rng, family, int(place)), rng


def make_case(seed: int, name: str, folder: Path, lasting: Lasting | None = None) -> dict[str, Any]:
    """Writes the recording into `folder`/NUMBER/recording; returns the truth, which belongs beside it. `lasting`: noise
    that a set's cases do not have."""
    drawn, rng = draw(seed, name)
    cluster = draw_cluster(rng, drawn)
    programs = _programs(drawn, cluster)
    steps = _steps(programs[0], drawn.world)
    story = tell(rng, drawn.family, drawn, cluster, programs, steps)
    shape = _shape(rng, drawn, steps)
    if lasting:
        stream = [seed, zlib.crc32(name.encode())]
        shape = shape_with(shape, lasting, stream, drawn.world, lambda program: _batch_of(drawn, program) // MAX_MICROS)
    job = Job(drawn.world, programs, _of_step(drawn, steps), _noise(drawn), shape)
    happened = run(job, story.faults, rng)
    who = _identity(rng, _job_id(seed, name), drawn, cluster, story, len(happened.times), happened)
    lines = write(folder / number_of(name) / "recording", who, job, happened, list(story.faults), _work(drawn, steps))
    truth = _truth(seed, name, drawn, cluster, job, story, happened, who)
    own = {"layout": truth["layout"] | {"lasting": dataclasses.asdict(lasting)}} if lasting else {}
    return truth | own | {"lines": lines}


def _programs(drawn: Drawn, cluster: Cluster) -> tuple[Program, ...]:
    everybody = range(drawn.world)
    if drawn.family == "quorum":
        few = [rank for rank in everybody if rank // drawn.design.island != drawn.leaver]
        return build(drawn.design, cluster, everybody), build(drawn.design, cluster, few)
    if drawn.design.engine == "diloco":
        return build(drawn.design, cluster, everybody), build(drawn.design, cluster, everybody, outer=True)
    return (build(drawn.design, cluster, everybody),)


def _steps(program: Program, world: int) -> int:
    lines = len(program.calls) + len(program.spans) + world
    fewest = MIN_STEPS_HUGE if world > 1024 else MIN_STEPS
    return int(np.clip(MAX_LINES // lines, fewest, MAX_STEPS))


def _of_step(drawn: Drawn, steps: int) -> tuple[int, ...]:
    if drawn.family == "quorum":
        first, second = (0, 1) if drawn.leaves else (1, 0)
        return tuple(first if step < steps * drawn.change else second for step in range(steps))
    if drawn.design.engine == "diloco":
        return tuple(int(step % drawn.every == drawn.every - 1) for step in range(steps))
    return (0,) * steps


def _noise(drawn: Drawn) -> Noise:
    if drawn.family == "pauses":
        return dataclasses.replace(drawn.noise, pauses=0.06, pause=0.08)
    return drawn.noise


def _shape(rng: np.random.Generator, drawn: Drawn, steps: int) -> Callable[[int, Program], Times | None]:
    """How the work differs between ranks and steps by design."""
    seed = int(rng.integers(1 << 31))
    known: dict[int, NDArray[np.int64]] = {}

    def shape(step: int, program: Program) -> Times | None:
        if drawn.spread <= 0 and not drawn.fleet_slower and not drawn.wait:
            return None
        drawing = np.random.default_rng([seed, step])
        factor = np.ones(len(program.duration))
        gpu = program.kind == GPU
        if drawn.spread > 0:
            key = id(program)
            if key not in known:
                known[key] = _batch_of(drawn, program)
            by_batch = np.exp(drawing.normal(0.0, drawn.spread, (drawn.world + 1) * MAX_MICROS))
            factor[gpu] *= by_batch[known[key]][gpu]
        if drawn.fleet_slower and step > steps // 2:
            factor[gpu] *= 1.0 + drawn.fleet_slower * min(1.0, (step - steps // 2) / 10)
        if drawn.wait:
            waiting = program.kind == 2
            factor[waiting] *= 1.0 + drawn.wait * drawing.lognormal(0.0, 0.5)
        return factor

    return shape


def _batch_of(drawn: Drawn, program: Program) -> NDArray[np.int64]:
    """[N]: by event, a number for what it works on: a batch, or, where tokens are routed to ranks, the rank."""
    places = Places(drawn.design, program.ranks)
    if drawn.family == "routing":
        owner = {rank: rank for rank in program.ranks}
    else:
        owner = {rank: places.data_index(rank) for rank in program.ranks}
    by_rank = np.array([owner.get(rank, 0) for rank in range(drawn.world)])
    numbers: NDArray[np.int64] = by_rank[program.owner] * MAX_MICROS + program.micro % MAX_MICROS
    return numbers


def _work(drawn: Drawn, steps: int) -> Times:
    """[steps, world]: the tokens that each rank says it was given."""
    tokens = np.full((steps, drawn.world), 8192.0 * drawn.design.micros)
    for rank in drawn.lighter:
        tokens[:, rank] = np.round(tokens[:, rank] / 1.3)
    return tokens


def _identity(
    rng: np.random.Generator, job_id: str, drawn: Drawn, cluster: Cluster, story: Story, steps: int, happened: Run
) -> Identity:
    node = np.array([cluster.node_of(rank) for rank in range(drawn.world)])
    uptime = rng.uniform(1e4, 4e6, cluster.nodes)[node]
    offset = uptime + rng.normal(0.0, 2e-5, drawn.world)
    drift = rng.normal(0.0, 15e-6, cluster.nodes)[node]
    unix = rng.normal(0.0, 0.002, cluster.nodes)[node]
    jump, jump_at = {}, np.inf
    if "clock_set" in drawn.quality:
        ranks = cluster.ranks_of(int(rng.integers(cluster.nodes)))
        jump = dict.fromkeys(ranks, float(rng.choice([-3.0, -0.7, 0.4, 5.0])))
        finite = happened.ends[np.isfinite(happened.ends[:, 0]), 0]
        jump_at = float(finite[len(finite) // 2]) if len(finite) else np.inf
    losses = _losses(rng, drawn, story, steps)
    clocks = Clocks(offset, drift, unix, jump, jump_at)
    hidden = "deep_ep" if story.told_hidden else ""
    recorder, witnesses, ahead = (bool(rng.random() < 0.6) for _ in range(3))
    return Identity(job_id, cluster, clocks, losses, recorder, witnesses, ahead, hidden)


def _job_id(seed: int, name: str) -> str:
    """Seven digits that say nothing of what befalls the job."""
    digest = hashlib.sha256(f"{seed} {number_of(name)}".encode()).digest()
    return f"{int.from_bytes(digest[:8], 'big') % 10**7:07d}"


def _losses(rng: np.random.Generator, drawn: Drawn, story: Story, steps: int) -> Losses:
    ranks: frozenset[int] = frozenset()
    gone: dict[int, frozenset[int]] = {}
    if "lost_ranks" in drawn.quality:
        count = int(rng.integers(1, max(2, drawn.world // 8)))
        ranks = frozenset(rng.choice(np.arange(1, drawn.world), count, replace=False).tolist())
    if "gaps" in drawn.quality:
        share = rng.uniform(0.02, 0.3)
        for rank in range(drawn.world):
            begin = int(rng.integers(0, steps))
            hole = set(range(begin, min(steps, begin + int(rng.integers(0, max(2, steps // 8))))))
            gone[rank] = frozenset(hole | set(np.flatnonzero(rng.random(steps) < share).tolist()))
    return Losses(ranks, gone, "no_steps" in drawn.quality)


def _truth(
    seed: int,
    name: str,
    drawn: Drawn,
    cluster: Cluster,
    job: Job,
    story: Story,
    happened: Run,
    who: Identity,
) -> dict[str, Any]:
    found = [_fault_truth(place, drawn, job, story, happened, who) for place in range(len(story.faults))]
    verdicts = story.verdicts or _verdicts(found)
    step = np.diff(happened.ends[:, 1], prepend=0.0)
    return {
        "schema": "laggard-bench.truth/1",
        "case": number_of(name),
        "seed": seed,
        "family": drawn.family,
        "ranks": drawn.world,
        "nodes": cluster.nodes,
        "steps": len(happened.times),
        "layout": drawn.words,
        "recorded": sorted(drawn.quality) + (["hidden_waits"] if who.hidden else []),
        "step_seconds": round(float(np.median(step)), 6),
        "verdicts": sorted(set(verdicts)),
        "faults": found,
        "tolerated": list(story.tolerated),
        "why": story.why,
    }


def _verdicts(faults: list[dict[str, Any]]) -> tuple[str, ...]:
    """Those that are right. Where nobody need be named, unknown is, and, if the job goes on, so is ok."""
    right = {{"hang": "hang", "death": "dead"}.get(each["kind"], "slow") for each in faults}
    if any(each["how"].endswith("timeout") for each in faults):
        right.add("dead")  # it was killed in the end, when those that waited had given up
    if all(each["optional"] for each in faults):
        right |= {"unknown"} if right & {"hang", "dead"} else {"unknown", "ok"}
    return tuple(right)


def _fault_truth(place: int, drawn: Drawn, job: Job, story: Story, happened: Run, who: Identity) -> dict[str, Any]:
    fault, cluster = story.faults[place], who.cluster
    size = run_size = alone = None
    if not fault.stops:
        several = len(story.faults) > 1
        size, run_size = lengthening(happened, 0, 2 + place if several else 1, fault.active)
        alone = max(size, _alone(story, happened, place)) if several else size
    accepted, same = _accepted(fault, cluster, job.programs)
    accepted += story.instead
    return {
        "name": fault.name,
        "kind": fault.kind,
        "how": " ".join(filter(None, (fault.how, fault.ended if fault.kind == "hang" else ""))),
        "size": None if size is None else round(size, 5),
        "size_alone": None if alone is None else round(alone, 5),
        "size_of_run": None if run_size is None else round(run_size, 5),
        "first_step": int(np.flatnonzero(fault.active)[0]) if fault.active.any() else fault.stop_step,
        "accepted": accepted,
        "same_in_any_recording": same,
        "optional": _why_optional(
            fault, accepted, alone if _as_large_as_others(story, happened, place) else size, drawn, job, happened, who
        ),
    }


def _alone(story: Story, happened: Run, place: int) -> float:
    """By how much the fault would make the step longer if it were the only one."""
    return lengthening(happened, 2 + len(story.faults) + place, 1, story.faults[place].active)[0]


def _as_large_as_others(story: Story, happened: Run, place: int) -> bool:
    """Whether the fault is about as large as the largest of several: these hide one another, so that to repair one
    gains nothing, and all have to be named."""
    if len(story.faults) < 2:
        return False
    sizes = [_alone(story, happened, other) for other in range(len(story.faults))]
    return sizes[place] >= 0.8 * max(sizes)


def _accepted(
    fault: Fault, cluster: Cluster, programs: tuple[Program, ...]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The culprits, and those that no recording tells from them."""
    if fault.stops:
        return [machine(cluster, fault.stops, "hang" if fault.kind == "hang" else "dead")], []
    if fault.kind != "slow_link":
        kind = "compute" if fault.kind == "slow_compute" else "host"
        return [machine(cluster, part.ranks, kind) for part in fault.parts], []
    elements = [part.element for part in fault.parts if part.element is not None]
    alike = [other for each in elements for other in same_ends(programs[0], each) if other != each]
    return [culprit_of(cluster, each) for each in elements], [culprit_of(cluster, each) for each in alike]


def _why_optional(
    fault: Fault,
    accepted: list[dict[str, Any]],
    size: float | None,
    drawn: Drawn,
    job: Job,
    happened: Run,
    who: Identity,
) -> str:
    """The reason why nobody need name the fault; empty where there is none."""
    always = bool(fault.active.all())
    if fault.optional:
        return fault.optional
    if size is not None and size < HIDDEN_SHARE:
        return "it is hidden: steps are longer by less than they differ by themselves"
    if {rank for each in accepted for rank in each["ranks"]} <= who.losses.ranks and accepted[0]["ranks"]:
        return "its ranks were not recorded"
    if fault.how == "gpu" and who.ahead and not recorder_tells(who, job, happened, fault.stops[0]):
        return "all hosts ran ahead, and the Flight Recorder does not tell whose GPU stands still"
    links = [part.element for part in fault.parts if part.element is not None]
    if links and always and not all(stands_out(job.programs[0], each) for each in links):
        return "no transfer is like those that are slow: the network may be slower by design"
    peers = {"gpu": _stages(drawn)}
    if any(half_of_a_stage(part.ranks, peers.get(part.how, [range(drawn.world)])) for part in fault.parts):
        return "half of those that do the same work are slow alike, or more: nobody stands out"
    return ""


def _stages(drawn: Drawn) -> list[range]:
    """The ranks that do the same work: those of a pipeline's stage."""
    each = drawn.world // drawn.design.pp
    return [range(first, first + each) for first in range(0, drawn.world, each)]
