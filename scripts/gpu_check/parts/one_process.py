"""Scripts of one process that end or fork in a way of CUDA's own: with the hooks they do what they do without.

`sticky-error`: a device-side assertion ends the script, after which every call of CUDA fails, the hooks' too. `fork`:
children are forked once CUDA has started, where no call of CUDA is allowed.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpu_check.jobs.launch import SUSPICIOUS, job_command, job_environ, main_line, read_recorded, scratch
from gpu_check.outcome import NOT_RUN, Context, Outcome, info, judged, torch_on_gpu

JOBS = Path(__file__).parents[1] / "jobs"
SECONDS, REHEARSED_SECONDS = 60, 300
LONGER_SECONDS = 15.0  # than without the hooks, at most
MIN_STEPS = {"sticky-error": 3, "fork": 10}  # that are recorded, of the script's own 5 and 12


class Ended(NamedTuple):
    """`status`: None where it did not end in time. `error`: the line that names it, empty where it ended well."""

    status: int | None
    output: str
    error: str
    lines: tuple[str, ...]
    seconds: float


def run(context: Context, name: str) -> Iterator[Outcome]:
    if not context.rehearse:
        torch_on_gpu()
    script = JOBS / ("forks.py" if name == "fork" else "sticky_error.py")
    limit = REHEARSED_SECONDS if context.rehearse else SECONDS
    bare = run_script(script, None, limit)
    if bare.status is None or (bare.status == 0) != (name == "fork"):
        yield Outcome(name, NOT_RUN, f"without laggard it ends with {bare.status}: {bare.error}")
        return
    with scratch() as place:
        hooked = run_script(script, Path(place), limit)
        recorded = read_recorded(Path(place))
    yield same_end(bare, hooked, context.rehearse)
    yield nothing_of_cuda(bare, hooked)
    steps = recorded[0].steps if recorded else 0
    text = f"{steps} steps, {recorded[0].errors if recorded else 0} errors in the hooks"
    yield judged("recorded until then", len(recorded) == 1 and steps >= MIN_STEPS[name], text)


def run_script(script: Path, hooked_into: Path | None, limit: float) -> Ended:
    environ = {**job_environ(hooked_into), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        job_command(script, hooked_into),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environ,
    )
    try:
        output, errors = process.communicate(timeout=limit)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        status = None
    lines = tuple(line.strip() for line in errors.splitlines() if line.strip())
    error = without_numbers(main_line(errors)) if status else ""
    return Ended(status, output.strip(), error, lines, time.monotonic() - began)


def without_numbers(line: str) -> str:
    """Addresses and process numbers differ from run to run."""
    return re.sub(r"0x[0-9a-f]+|\d{3,}", "N", line)


def same_end(bare: Ended, hooked: Ended, rehearse: bool) -> Outcome:
    ends = [(each.status, each.output, each.error) for each in (bare, hooked)]
    texts = [f"{each.status}, {each.output or each.error!r}, {each.seconds:.1f} s" for each in (bare, hooked)]
    in_time = rehearse or hooked.seconds <= bare.seconds + LONGER_SECONDS
    text = f"as without the hooks: {texts[1]}" if ends[0] == ends[1] else f"{texts[1]}; without the hooks {texts[0]}"
    return judged("the same end", ends[0] == ends[1] and in_time, text)


def nothing_of_cuda(bare: Ended, hooked: Ended) -> Outcome:
    """What CUDA warns of with the hooks alone; what laggard itself says is told."""
    known = {without_numbers(line) for line in bare.lines}
    new = [line for line in hooked.lines if without_numbers(line) not in known]
    ours = [line for line in new if line.startswith("laggard: ")]
    of_cuda = [line for line in new if SUSPICIOUS.search(line) and line not in ours]
    if of_cuda:
        return judged("warnings", False, "; ".join(of_cuda[:3]))
    return info("warnings", f"laggard says: {'; '.join(ours[:3])}") if ours else judged("warnings", True, "none more")
