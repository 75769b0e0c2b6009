"""Two processes that never call torch.cuda.set_device, as many DDP scripts do: the hooks must find each one's GPU, and
take no memory on another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpu_check.jobs.launch import Rank, Recorded, problem_of, read_recorded, run_ranks, scratch
from gpu_check.outcome import NOT_RUN, CannotRun, Context, Outcome, judged, torch_on_gpu

SECONDS, STEPS, BASE_MS = 120, 30, 10.0
CONTEXT_MIB = 150  # a CUDA context takes more
TOLERANCE_RATIO = 0.1


def run(context: Context) -> Iterator[Outcome]:
    if context.rehearse:
        raise CannotRun("a CPU has no devices to set")
    count = torch_on_gpu().cuda.device_count()
    if count < 2:
        raise CannotRun("needs two GPUs, and here is one")
    words = ["no_set_device", "--steps", str(STEPS), "--base-ms", str(BASE_MS)]
    bare = run_ranks(words, 2, SECONDS, None)
    if problem := problem_of(bare):
        yield Outcome("no set_device", NOT_RUN, f"fails without laggard too: {problem}")
        return
    with scratch() as folder:
        hooked = run_ranks(words, 2, SECONDS, Path(folder))
        if problem := problem_of(hooked):
            yield judged("no set_device", False, f"fails with the hooks only: {problem}")
            return
        recorded = read_recorded(Path(folder))
    yield from judge(bare, hooked, recorded)


def judge(bare: list[Rank], hooked: list[Rank], recorded: list[Recorded]) -> Iterator[Outcome]:
    gpus = {each.gpu for each in recorded}
    yield judged("each rank has its own GPU", len(gpus) == len(hooked) and None not in gpus, f"{len(gpus)} GPUs named")
    counts = [f"{each.errors} errors, {each.lost} lost" for each in recorded]
    yield judged("errors in the hooks", not any(each.errors or each.lost for each in recorded), "; ".join(counts))
    for number, (rank, ours) in enumerate(zip(hooked, recorded, strict=False)):
        due, found = (rank.result or {}).get("forward_ms"), ours.phases_ms.get("forward")
        good = due is not None and found is not None and abs(found - due) <= 1.0 + TOLERANCE_RATIO * due
        yield judged(f"forward of rank {number}", good, f"{found} ms (due {due})")
    used = [(ranks[0].result or {}).get("gpu0_used_mib", 0) for ranks in (bare, hooked)]
    good = used[1] - used[0] < CONTEXT_MIB
    yield judged("memory on GPU 0", good, f"{used[1]} MiB in use, {used[0]} without the hooks")
