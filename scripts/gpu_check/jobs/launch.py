"""Starts the ranks of a training on this machine, with the hooks and without, and reads what the hooks recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_check.outcome import python_path

TRAIN = Path(__file__).with_name("train.py")
RAS_PORT = 28028  # of rank 0; the next ones are the other ranks'
ENVIRON = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may add in another order from run to run
    "TORCH_FR_BUFFER_SIZE": "20000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",  # its older name
    "OMP_NUM_THREADS": "1",
    "LAGGARD_JOB_ID": "gpu-check",
    "LAGGARD_OFF": "",
    "LAGGARD_HOST_CLOCK": "",
}


class Rank(NamedTuple):
    """One rank that has ended. `result`: what it printed as its RESULT; None where it did not come to that."""

    status: int | None
    result: dict[str, Any] | None
    errors: str

    @property
    def good(self) -> bool:
        return self.status == 0 and self.result is not None


class Recorded(NamedTuple):
    """What the hooks recorded of one rank. `collectives`: of each operation, without send and recv; `phases`: medians
    of the steps, in milliseconds, the first ones left out; `clocks`: of how many collectives which clock gave the
    times, without those before the first step's end, when the hooks may not know the GPU yet."""

    rank: int
    gpu: str | None
    steps: int
    errors: int
    lost: int
    collectives: Counter[str]
    clocks: Counter[str]
    phases_ms: dict[str, float]


def run_ranks(
    words: Sequence[str],
    ranks: int,
    seconds: float,
    hooked_into: Path | None,
    extra: Mapping[str, str] | None = None,
    script: Path = TRAIN,
) -> list[Rank]:
    """Runs a script as so many ranks. `hooked_into`: the folder for what the hooks record; None: without them."""
    return collect(start_ranks(words, ranks, hooked_into, extra, script), seconds)


def start_ranks(
    words: Sequence[str],
    ranks: int,
    hooked_into: Path | None,
    extra: Mapping[str, str] | None = None,
    script: Path = TRAIN,
    **streams: Any,
) -> list[subprocess.Popen[str]]:
    """Starts the ranks; the arguments as for run_ranks. `streams`: what their Popen has in place of pipes."""
    from laggard.demo.job import free_port

    port = free_port()
    environ = {**job_environ(hooked_into), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(extra or {})}
    command = job_command(script, hooked_into, words)
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return [
        subprocess.Popen(
            command,
            text=True,
            errors="replace",
            env={**environ, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            **pipes,
        )
        for rank in range(ranks)
    ]


def job_command(script: Path, hooked_into: Path | None, words: Sequence[str] = ()) -> list[str]:
    """The command that runs a script, under `laggard run` where it is `hooked_into` a folder."""
    hooks = ["-m", "laggard", "run", "--record", str(hooked_into / "recording")] if hooked_into is not None else []
    return [sys.executable, *hooks, str(script), *words]


def job_environ(hooked_into: Path | None) -> dict[str, str]:
    environ = {**os.environ, **ENVIRON, "PYTHONPATH": python_path()}
    if hooked_into is not None:
        environ["LAGGARD_RANK_DIR"] = str(hooked_into / "ranks")
    return environ


def collect(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[Rank]:
    """Waits for all ranks, all their output read at the same time. One that fails or does not end in time ends them
    all: the others would wait for it."""
    outputs: dict[int, tuple[str, str]] = {}

    def read(place: int) -> None:
        outputs[place] = processes[place].communicate()
        if processes[place].returncode:
            timer.function()

    def end_all() -> None:
        for process in processes:
            process.kill()

    timer = threading.Timer(seconds, end_all)
    timer.daemon = True
    timer.start()
    readers = [threading.Thread(target=read, args=(place,)) for place in range(len(processes))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    timer.cancel()
    return [rank(process, *(text or "" for text in outputs[place])) for place, process in enumerate(processes)]


def rank(process: subprocess.Popen[str], output: str, errors: str) -> Rank:
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    result = json.loads(lines[-1].removeprefix("RESULT ")) if lines else None
    return Rank(process.returncode, result, errors)


def problem_of(ranks: Sequence[Rank]) -> str:
    """Why these ranks did not all end well, in one line; empty: they did. A rank that failed by itself comes before
    those that were then killed."""
    bad = [(number, each) for number, each in enumerate(ranks) if not each.good]
    if not bad:
        return ""
    number, first = min(bad, key=lambda pair: pair[1].status is None or pair[1].status < 0)
    return f"rank {number} ended with {first.status}: {main_line(first.errors)}"


def main_line(errors: str) -> str:
    """The line that names the error: of a traceback the last one that is not torch's closing remark."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b", line)]
    return ((named or lines)[-1] if lines else "it printed no error")[:300]


def read_recorded(folder: Path) -> list[Recorded]:
    """In the order of the ranks."""
    from laggard.rankfile import RankFileReader
    from laggard.rankfile.fact_names import GPU

    found = []
    for path in (folder / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters, steps = file.counters(), file.steps()
            identity, facts = dict(file.identity), file.facts()
        lines = (folder / "recording" / f"rank-{identity['rank']}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        collectives = [each for each in records if each.get("kind") == "collective"]
        found.append(
            Recorded(
                identity["rank"],
                facts.get(GPU) or identity.get("gpu"),
                counters.steps if counters else 0,
                counters.errors if counters else 0,
                counters.lost if counters else 0,
                Counter(each["op"] for each in collectives if each["op"] not in ("send", "recv")),
                Counter(each["clock"] for each in collectives if each["step"]),
                phases_of(steps[3:]),
            )
        )
    return sorted(found, key=lambda each: each.rank)


def phases_of(steps: Sequence[Any]) -> dict[str, float]:
    import statistics

    from laggard.kit.constants import PHASES

    if not steps:
        return {}
    found = {name: statistics.median(step.phases[place] for step in steps) / 1e6 for place, name in enumerate(PHASES)}
    return {**found, "waited": statistics.median(step.waited for step in steps) / 1e6}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for a training's records, in memory where there is room."""
    return tempfile.TemporaryDirectory(prefix="gpu-check-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
