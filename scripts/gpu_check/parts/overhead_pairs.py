"""What the hooks cost a step, as a ratio: a training with them and one without take turns on the GPU, block by block.

Both processes are there all the time, and while one trains the other waits.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_check.jobs.launch import job_command, job_environ, main_line, scratch
from gpu_check.outcome import NOT_RUN, Context, Outcome, info, judged, torch_on_gpu

SCRIPT = Path(__file__).parents[1] / "jobs" / "paced.py"
PAIRS, STEPS, FIRST, WARM_UP = 30, 66, 2, 600  # steps of a block: where one in 32 has marks, two of them have
REHEARSED_PAIRS = 4
BUDGET_MS, BUDGET_RATIO = 0.2, 1.02  # both must be exceeded


class Ended(Exception):
    """A training has ended; the text says why."""


class Paced:
    """One of the two trainings."""

    def __init__(self, size: str, hooked_into: Path | None, errors: Path) -> None:
        from laggard.demo.job import free_port

        environ = {**job_environ(hooked_into), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                job_command(SCRIPT, hooked_into, [size]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=environ,
            )

    def wait_until_ready(self) -> None:
        if self._answer() != "READY":
            raise Ended("it says something else than READY")

    def step_ms(self, steps: int) -> float:
        """The mean of so many steps, without the first ones: a part of them has marks."""
        try:
            self._process.stdin.write(f"{steps}\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            raise Ended(main_line(self._errors.read_text())) from None
        return statistics.fmean(json.loads(self._answer())[FIRST:])

    def _answer(self) -> str:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise Ended(main_line(self._errors.read_text()))
        return line.strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def run(context: Context, *sizes: str) -> Iterator[Outcome]:
    if not context.rehearse:
        torch_on_gpu()
    for size in sizes:
        yield from measured(size, context.rehearse)


def measured(size: str, rehearse: bool) -> Iterator[Outcome]:
    name = f"a {size} step"
    with scratch() as place:
        folder = Path(place)
        trainings = [Paced(size, None, folder / "bare.err"), Paced(size, folder, folder / "hooked.err")]
        try:
            pairs, failure = pairs_of(trainings, REHEARSED_PAIRS if rehearse else PAIRS)
        finally:
            for each in trainings:
                each.kill()
    if failure is None:
        yield outcome(name, pairs, rehearse)
    else:
        yield failure._replace(check=name)


def pairs_of(trainings: Sequence[Paced], count: int) -> tuple[list[tuple[float, float]], Outcome | None]:
    """The milliseconds of a step in each pair of blocks, bare and hooked; or the outcome where one of the trainings
    ended."""
    pairs = []
    whose = 0
    try:
        for whose in range(len(trainings)):
            trainings[whose].wait_until_ready()
            trainings[whose].step_ms(WARM_UP)
        for number in range(count):
            times = [0.0, 0.0]
            for whose in (0, 1) if number % 2 else (1, 0):
                times[whose] = trainings[whose].step_ms(STEPS)
            pairs.append((times[0], times[1]))
    except Ended as reason:
        if whose:
            return [], judged("", False, f"fails with the hooks: {reason}")
        return [], Outcome("", NOT_RUN, f"fails without laggard too: {reason}")
    return pairs, None


def outcome(name: str, pairs: Sequence[tuple[float, float]], rehearse: bool = False) -> Outcome:
    """Judges the medians over the pairs."""
    ratios = statistics.quantiles((hooked / bare for bare, hooked in pairs), n=4)
    added = statistics.quantiles((hooked - bare for bare, hooked in pairs), n=4)
    base = statistics.median(bare for bare, _ in pairs)
    text = (
        f"{ratios[1]:.4f} times as long with the hooks ({ratios[0]:.4f} to {ratios[2]:.4f}, quartiles of "
        f"{len(pairs)} pairs), {added[1]:+.3f} ms ({added[0]:+.3f} to {added[2]:+.3f}) on {base:.3f} ms"
    )
    if rehearse:
        return info(name, text)
    return judged(name, added[1] <= BUDGET_MS or ratios[1] <= BUDGET_RATIO, text)
