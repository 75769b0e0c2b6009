"""The hooks in real trainings, on one GPU and on all: nothing changes but that everything is recorded.

Each training runs without the hooks first. Where that fails, the hooks are not to blame, and it is not run with them.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_check.jobs.launch import Rank, Recorded, problem_of, read_recorded, run_ranks, scratch
from gpu_check.outcome import NOT_RUN, CannotRun, Context, Outcome, judged, torch_on_gpu

SECONDS, REHEARSED_SECONDS = 150, 600
OPERATIONS = (  # what a name has in it, the first that fits: NCCL's barrier is nccl:all_reduce_barrier
    *(("coalesced", ""), ("barrier", "barrier"), ("reduce_scatter", "reduce_scatter")),
    *(("all_reduce", "all_reduce"), ("allreduce", "all_reduce"), ("all_gather", "all_gather")),
    *(("allgather", "all_gather"), ("all_to_all", "all_to_all"), ("alltoall", "all_to_all")),
    *(("broadcast", "broadcast"), ("gather", "gather"), ("scatter", "scatter")),
)


def run(context: Context, *kinds: str) -> Iterator[Outcome]:
    # One rank, and as many as there are GPUs.
    for size in [2] if context.rehearse else sorted({1, torch_on_gpu().cuda.device_count()}):
        for kind in kinds:
            yield from training(kind, size, context)


def training(kind: str, size: int, context: Context) -> Iterator[Outcome]:
    name = f"{kind} on {size} {'CPU rank' if context.rehearse else 'GPU'}{'s' if size > 1 else ''}"
    if importlib.util.find_spec("deepspeed") is None:
        raise CannotRun("DeepSpeed is not installed")
    seconds = REHEARSED_SECONDS if context.rehearse else SECONDS
    bare = run_ranks([kind], size, seconds, None)
    if problem := problem_of(bare):
        yield Outcome(name, NOT_RUN, f"fails without laggard too: {problem}")
        return
    with scratch() as folder:
        hooked = run_ranks([kind], size, seconds, Path(folder))
        if problem := problem_of(hooked):
            yield judged(name, False, f"fails with the hooks only: {problem}")
            return
        recorded = read_recorded(Path(folder))
    yield verdict(name, bare, hooked, recorded, on_gpu=not context.rehearse)


def results(ranks: Sequence[Rank]) -> list[tuple[object, object]]:
    return [(each.result["losses"], each.result["weights"]) if each.result else (None, None) for each in ranks]


def verdict(
    name: str, bare: Sequence[Rank], hooked: Sequence[Rank], recorded: Sequence[Recorded], on_gpu: bool
) -> Outcome:
    steps = len(hooked[0].result["losses"]) if hooked[0].result else 0
    problems = []
    if results(hooked) != results(bare):
        problems.append("losses or weights are not the same as without the hooks")
    if len(recorded) != len(hooked):
        problems.append(f"{len(recorded)} of {len(hooked)} ranks were recorded")
    for number, (rank, ours) in enumerate(zip(hooked, recorded, strict=False)):
        problems += [f"rank {number}: {each}" for each in rank_problems(rank, ours, steps, on_gpu)]
    counts = sum((each.collectives for each in recorded), Counter[str]())
    clocks = sum((each.clocks for each in recorded), Counter[str]())
    texts = [f"{steps} steps", listed(counts), f"clocks: {listed(clocks)}"]
    return judged(name, not problems, "; ".join(problems or texts))


def rank_problems(rank: Rank, ours: Recorded, steps: int, on_gpu: bool) -> Iterator[str]:
    if ours.steps < steps - 1:
        yield f"{ours.steps} of {steps} steps were recorded"
    if ours.errors or ours.lost:
        yield f"{ours.errors} errors in the hooks, {ours.lost} collectives lost"
    if ours.clocks["host"] > 0.2 * sum(ours.clocks.values()):
        yield f"times are not the GPU's: {listed(ours.clocks)}"
    seen = rank.result["seen"] if rank.result else None
    if seen is not None:
        yield from miscounted(seen, ours.collectives, on_gpu)


def miscounted(seen: Mapping[str, int], ours: Counter[str], on_gpu: bool) -> Iterator[str]:
    """Operations of which torch's Flight Recorder holds more than the hooks recorded, or less. It names a batch
    `coalesced`, and before torch 2.7 does not hold the operations in it: then the hooks may have more."""
    theirs, batches = Counter[str](), False
    for name, count in seen.items():
        op = operation(name)
        batches |= not op
        if op:
            theirs[op] += count
    if not on_gpu:  # gloo carries a reduce_scatter out as an all_reduce
        ours = Counter({**ours, "all_reduce": ours["all_reduce"] + ours["reduce_scatter"], "reduce_scatter": 0})
    for op in sorted({*theirs, *ours}):
        if ours[op] < theirs[op] or (ours[op] > theirs[op] and not batches):
            yield f"{ours[op]} of {theirs[op]} {op} were recorded"


def operation(name: str) -> str:
    """nccl:_all_gather_base -> all_gather; empty: a batch."""
    text = name.rpartition(":")[2].lower()
    return next((op for part, op in OPERATIONS if part in text), text)


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "no collectives"
