"""What the hooks cost a whole training step: interleaved pairs of runs of DDP on all GPUs, a step's time by bare
events."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from gpu_check.jobs.launch import problem_of, run_ranks, scratch
from gpu_check.outcome import NOT_RUN, Context, Outcome, info, judged, torch_on_gpu

PAIRS, STEPS, SECONDS = 5, 400, 90
BUDGET_MS, BUDGET_RATIO = 0.2, 0.02  # both must be exceeded


def run(context: Context) -> Iterator[Outcome]:
    size = 2 if context.rehearse else torch_on_gpu().cuda.device_count()
    pairs, steps = (1, 40) if context.rehearse else (PAIRS, STEPS)
    words = ["ddp", "--steps", str(steps)]
    bare, added = [], []
    for number in range(pairs):
        times: dict[bool, float] = {}
        for hooked in (False, True) if number % 2 else (True, False):
            step_ms = step_time(words, size, hooked)
            if isinstance(step_ms, str):
                reason = f"fails{' with the hooks' if hooked else ' without laggard too'}: {step_ms}"
                yield judged("a step of DDP", False, reason) if hooked else Outcome("a step of DDP", NOT_RUN, reason)
                return
            times[hooked] = step_ms
        bare.append(times[False])
        added.append(times[True] - times[False])
    middle, base = statistics.median(added), statistics.median(bare)
    spread = f"{min(added):.3f} to {max(added):.3f}"
    text = f"{middle:.3f} ms added to {base:.2f} ms on {size} ranks (of {pairs} pairs {spread}; budget {BUDGET_MS} ms)"
    if context.rehearse:
        yield info("a step of DDP", text)
    else:
        yield judged("a step of DDP", middle <= BUDGET_MS or middle <= BUDGET_RATIO * base, text)


def step_time(words: list[str], size: int, hooked: bool) -> float | str:
    """The mean over the ranks of their median step, in milliseconds; or why there is none."""
    with scratch() as folder:
        ranks = run_ranks(words, size, SECONDS, Path(folder) if hooked else None)
    return problem_of(ranks) or statistics.fmean(each.result["step_ms"] for each in ranks if each.result)
