"""Two ranks that share a GPU, over gloo, one of them disturbed: `laggard locate` has to name the one that is.

Without MPS a GPU runs the processes that share it in turns, so whatever disturbs one process at a time when the others
have work disturbs them all, and then nobody may be named ("together"). To have one rank disturbed alone, the ranks work
one after the other (jobs/two_ranks.py), and a second process keeps what the work needs busy in rank 1's turn: the SMs,
the memory, the PCIe link; or all the time rank 1's core. What is due follows from the work's length by bare events: a
disturbance that did not come about accuses nobody, and is told.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_check.jobs.launch import Rank, Recorded, job_environ, problem_of, read_recorded, run_ranks, scratch
from gpu_check.locating import locate, named
from gpu_check.outcome import NOT_RUN, CannotRun, Context, Outcome, info, judged, require_locate, torch_on_gpu

JOBS = Path(__file__).parents[1] / "jobs"
SECONDS, READY_SECONDS = 120, 60
STEPS, WORK_MS = 40, 40.0
REHEARSED_STEPS, REHEARSED_MS = 24, 20.0
FIRST = 3  # steps that are left out: much is set up in them
SLOW_RATIO, EQUAL_RATIO = 1.15, 1.03
"""By bare events: in three quarters of the steps a rank's work took so many times as long as the other's, and it has to
be named; or by its median no more than so many times, and nobody may be. Between them nothing is due."""
TOLERANCE_RATIO, TOLERANCE_MS = 0.1, 1.5
REHEARSED_TOLERANCE_RATIO, REHEARSED_TOLERANCE_MS = 0.3, 10.0


class Case(NamedTuple):
    """`load`: of what the work is; `disturbed`: by a second process; `factor`: how many times as much work rank 1 has;
    `together`: the ranks work at the same time, and both are disturbed from the middle step on."""

    load: str
    disturbed: bool = False
    factor: float = 1.0
    together: bool = False


CASES = {
    "calm": Case("sm"),
    "own": Case("sm", factor=2.0),
    "sm": Case("sm", disturbed=True),
    "memory": Case("memory", disturbed=True),
    "pcie": Case("pcie", disturbed=True),
    "cpu": Case("cpu", disturbed=True),
    "together": Case("sm", disturbed=True, together=True),
}


def run(context: Context, name: str) -> Iterator[Outcome]:
    case = CASES[name]
    if not context.rehearse:
        torch_on_gpu()
    require_locate()
    words, core = words_of(case, context.rehearse)
    with scratch() as place:
        folder = Path(place)
        flag, extra = folder / "flag", {"GPU_CHECK_SHARED": place}
        if case.disturbed and core is None:
            words += ["--flag", str(flag)]
        with disturber(case, flag, core, extra) as other:
            ranks = run_ranks(words, 2, SECONDS, folder, extra, JOBS / "two_ranks.py")
            ended = other is not None and other.poll() is not None
        problem = problem_of(ranks)
        if problem or ended:
            yield failed(name, words, problem or "the process that disturbs ended by itself", extra)
            return
        recorded, (location, said) = read_recorded(folder), locate(folder / "recording")
    yield from judge(case, context.rehearse, ranks, recorded, location, said)


def words_of(case: Case, rehearse: bool) -> tuple[list[str], int | None]:
    """The job's arguments; and the core of rank 1 that is kept busy, None where it is not the core."""
    steps, ms = (REHEARSED_STEPS, REHEARSED_MS) if rehearse else (STEPS, WORK_MS)
    words = [case.load, "--steps", str(steps), "--ms", str(ms), "--factor", str(case.factor)]
    words += ["--together"] if case.together else []
    words += ["--warm-up", "0.2"] if rehearse else []
    if case.load != "cpu":
        return words, None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotRun("one core: both ranks would be disturbed on it")
    return [*words, "--cores", f"{cores[0]},{cores[1]}"], cores[1]


@contextlib.contextmanager
def disturber(
    case: Case, flag: Path, core: int | None, extra: dict[str, str]
) -> Iterator[subprocess.Popen[str] | None]:
    """The process that disturbs, once it is ready; it ends with the block. Raises CannotRun where it does not start."""
    if not case.disturbed:
        yield None
        return
    words = [case.load, str(flag)]
    if core is not None:
        from gpu_check.jobs.flag import Flag

        Flag(flag).set(True)
        words += ["--core", str(core)]
    command = [sys.executable, str(JOBS / "disturb.py"), *words]
    environ = {**job_environ(None), **extra}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "READY":
                process.kill()
                raise CannotRun(f"the process that disturbs does not start: {process.communicate()[1][-300:]}")
            yield process
        finally:
            process.kill()


def failed(name: str, words: Sequence[str], problem: str, extra: dict[str, str]) -> Outcome:
    """The outcome of a job that did not end well: without the hooks it runs undisturbed, which tells whose fault it
    is."""
    bare = [word for word in words if word != "--flag" and not word.endswith("/flag")]
    if problem_of(run_ranks(bare, 2, SECONDS, None, extra, JOBS / "two_ranks.py")):
        return Outcome(name, NOT_RUN, f"fails without laggard too: {problem}")
    return judged(name, False, f"fails with the hooks only: {problem}")


def judge(
    case: Case, rehearse: bool, ranks: Sequence[Rank], recorded: Sequence[Recorded], location: Any, said: str
) -> Iterator[Outcome]:
    work = [(rank.result or {})["work_ms"] for rank in ranks]
    if case.together:
        yield from both_disturbed(work, recorded)
    truth = [statistics.median(each[FIRST:]) for each in work]
    yield info("work by bare events", f"rank 0 {truth[0]:.2f} ms, rank 1 {truth[1]:.2f} ms{expected(case)}")
    yield own_time(truth, recorded, rehearse)
    yield clocks(recorded)
    if location is None or "culprits" not in location:
        yield judged("verdict", False, f"laggard locate: {said or location}")
    else:
        yield verdict([each[FIRST:] for each in work], location)


def expected(case: Case) -> str:
    if case.together:
        return "; both are disturbed, which is nobody's slowness"
    if case.disturbed or case.factor != 1.0:
        return f"; rank 1 {'is disturbed' if case.disturbed else 'has more kernels in its own stream'}"
    return "; nobody is disturbed"


def both_disturbed(work: Sequence[Sequence[float]], recorded: Sequence[Recorded]) -> Iterator[Outcome]:
    """Whether the disturbance of both shows as own time of both: from the middle step on they have more."""
    for number, (times, ours) in enumerate(zip(work, recorded, strict=True)):
        true, found = growth(times), growth(ours.forward_ms)
        text = f"{found:.2f} times from the middle step on (by bare events {true:.2f})"
        if true < SLOW_RATIO:
            yield info(f"own time of rank {number}", f"{text}: the disturbance did not come about")
        else:
            yield judged(f"own time of rank {number}", abs(found / true - 1) <= TOLERANCE_RATIO * 2, text)


def growth(times: Sequence[float]) -> float:
    middle = len(times) // 2
    before, after = times[FIRST:middle], times[middle + 1 :]
    return statistics.median(after) / statistics.median(before) if before and after else 0.0


def own_time(truth: Sequence[float], recorded: Sequence[Recorded], rehearse: bool) -> Outcome:
    """Whether each rank's own time in forward is that of its work, whoever else had the GPU before."""
    found = [each.phases_ms.get("forward", 0.0) for each in recorded]
    ratio, least = (TOLERANCE_RATIO, TOLERANCE_MS)
    if rehearse:
        ratio, least = REHEARSED_TOLERANCE_RATIO, REHEARSED_TOLERANCE_MS
    good = len(found) == 2 and all(
        abs(ours - due) <= least + ratio * due for ours, due in zip(found, truth, strict=True)
    )
    texts = [f"rank {place} {each:.2f} ms" for place, each in enumerate(found)]
    return judged("own time in forward", good, ", ".join(texts))


def clocks(recorded: Sequence[Recorded]) -> Outcome:
    counts = [f"rank {each.rank}: {each.errors} errors, {each.lost} lost" for each in recorded]
    good = not any(each.errors or each.lost for each in recorded)
    return judged("errors in the hooks", good, "; ".join(counts))


def verdict(work: Sequence[Sequence[float]], location: Any) -> Outcome:
    """Judges who is named by how long the work of both ranks really took, step by step."""
    slow = 1 if statistics.median(work[1]) >= statistics.median(work[0]) else 0
    ratios = [mine / other for mine, other in zip(work[slow], work[1 - slow], strict=True)]
    lower, middle, _ = statistics.quantiles(ratios, n=4)
    found = [(culprit["ranks"], culprit["phase"]) for culprit in location["culprits"]]
    if lower >= SLOW_RATIO:
        return judged("verdict", found == [([slow], "forward")] and location["verdict"] == "fail", named(location))
    if middle <= EQUAL_RATIO:
        return judged("verdict", not found and location["verdict"] == "ok", named(location))
    text = f"{named(location)}; nothing is due where rank {slow} took {middle:.3f} times as long, at times {lower:.3f}"
    return info("verdict", text)
