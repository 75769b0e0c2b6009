"""One rank is made slow, and `laggard locate` has to name it; with no slow rank it has to name nobody.

On several GPUs a kernel keeps the slow rank busy, over NCCL. On one GPU, two ranks share it over gloo, and the host is
what is slow: kernels of two processes would hold each other up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check.jobs.launch import problem_of, run_ranks, scratch
from gpu_check.locating import locate
from gpu_check.outcome import NOT_RUN, Context, Outcome, judged, require_locate, torch_on_gpu

SLOW, STEPS, BASE_MS, SLOW_MS, SECONDS = 1, 60, 15.0, 30.0, 120
REHEARSED_STEPS, REHEARSED_SLOW_MS, REHEARSED_SECONDS = 30, 300.0, 600
REHEARSED_RATIO = 5.0
"""On CPUs, a rank that another process keeps waiting is slow, and rightly named: only who is this many times as long
busy as the others counts there. The fault makes it twenty times."""


def run(context: Context) -> Iterator[Outcome]:
    size = 2 if context.rehearse else max(2, torch_on_gpu().cuda.device_count())
    require_locate()
    steps, slow_ms, seconds, least = STEPS, SLOW_MS, SECONDS, 0.0
    if context.rehearse:
        steps, slow_ms, seconds, least = REHEARSED_STEPS, REHEARSED_SLOW_MS, REHEARSED_SECONDS, REHEARSED_RATIO
    for slow in (SLOW, None):
        name = f"rank {slow} of {size} slow in forward" if slow is not None else f"none of {size} ranks slow"
        words = ["ddp", "--steps", str(steps), "--base-ms", str(BASE_MS)]
        if slow is not None:
            words += ["--slow", str(slow), "--slow-ms", str(slow_ms)]
        with scratch() as folder:
            ranks = run_ranks(words, size, seconds, Path(folder))
            problem = problem_of(ranks)
            if problem and problem_of(run_ranks(words, size, seconds, None)):
                yield Outcome(name, NOT_RUN, f"fails without laggard too: {problem}")
            elif problem:
                yield judged(name, False, f"fails with the hooks only: {problem}")
            else:
                yield judge(name, slow, *locate(Path(folder) / "recording"), least)


def judge(name: str, slow: int | None, location: Any, errors: str, least: float = 0.0) -> Outcome:
    """`least`: culprits that are fewer times as long busy as the others do not count."""
    if location is None or "culprits" not in location:
        return judged(name, False, f"laggard locate: {errors or location}")
    counted = [it for it in location["culprits"] if not least or (it["slowdown_ratio"] or 0.0) >= least]
    named = [(culprit["ranks"], culprit["phase"]) for culprit in counted]
    due = [] if slow is None else [([slow], "forward")]
    texts = [f"ranks {ranks} in {phase}" for ranks, phase in named]
    verdicts = ("ok", "fail") if least and slow is None else ("ok",) if slow is None else ("fail",)
    good = named == due and location["verdict"] in verdicts
    return judged(name, good, f"{location['verdict']}: {', '.join(texts) or 'nobody is named'}")
