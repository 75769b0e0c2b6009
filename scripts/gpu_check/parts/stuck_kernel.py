"""A kernel that never ends in one rank of three: its GPU completes nothing, and `laggard locate` has to say so.

By torch's Flight Recorder dumps: rank 1 launched what the others wait in, and none of it is done. The ranks' own
recording, read while they stand, may know less, and must accuse nobody else. Then the job has to end, within a bound,
and the GPU has to be free for the next process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_check.jobs.launch import job_environ, main_line, scratch, start_ranks
from gpu_check.locating import locate, named
from gpu_check.outcome import NOT_RUN, Context, Outcome, info, judged, require_locate, torch_on_gpu

JOBS = Path(__file__).parents[1] / "jobs"
RANKS, STUCK = 3, 1
STAND_SECONDS, REHEARSED_STAND_SECONDS = 90, 600
END_SECONDS = 20.0  # for SIGTERM; what is there then gets SIGKILL
NEXT_SECONDS = 90
LOOK_SECONDS = 0.2


def run(context: Context) -> Iterator[Outcome]:
    if not context.rehearse:
        torch_on_gpu()
    require_locate()
    with scratch() as place:
        folder = Path(place)
        dumps = folder / "dumps"
        dumps.mkdir()
        words = [str(dumps), *(("--late", "8") if context.rehearse else ())]
        with (folder / "errors").open("w+") as errors:
            streams = {"stdout": subprocess.DEVNULL, "stderr": errors}
            processes = start_ranks(words, RANKS, folder, {}, JOBS / "stuck.py", **streams)
            try:
                stands = wait_until_it_stands(processes, dumps, context.rehearse)
                by_dumps, said = locate(dumps) if stands else (None, "")
                by_recording = locate(folder / "recording")[0] if stands else None
            finally:
                seconds, killed = end(processes)
            errors.seek(0)
            if not stands:
                yield Outcome("a hang", NOT_RUN, f"it does not come to stand: {main_line(errors.read())}")
                return
    yield by_flight_recorder(by_dumps, said)
    yield by_own_recording(by_recording)
    yield judged("the job's end", not killed, ended_text(seconds, killed))
    yield next_process()


def wait_until_it_stands(processes: Sequence[subprocess.Popen[str]], dumps: Path, rehearse: bool) -> bool:
    """Whether all ranks have written what they stand in."""
    until = time.monotonic() + (REHEARSED_STAND_SECONDS if rehearse else STAND_SECONDS)
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        if len(list(dumps.glob("fr_trace_*"))) == RANKS:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def end(processes: Sequence[subprocess.Popen[str]]) -> tuple[float, list[int]]:
    """Ends the ranks. Returns in how many seconds, and which of them SIGTERM did not end."""
    began, killed = time.monotonic(), []
    for process in processes:
        for number in (signal.SIGTERM, signal.SIGCONT):  # a rehearsal has one stopped
            process.send_signal(number)
    for rank, process in enumerate(processes):
        try:
            process.wait(max(0.1, began + END_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            killed.append(rank)
            process.kill()
    for rank in killed:
        try:
            processes[rank].wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # in the driver, which no signal ends
            continue
    return time.monotonic() - began, killed


def ended_text(seconds: float, killed: Sequence[int]) -> str:
    if not killed:
        return f"SIGTERM ended all ranks within {seconds:.1f} s"
    return f"SIGTERM did not end ranks {list(killed)} within {END_SECONDS:g} s; all ended or left after {seconds:.1f} s"


def by_flight_recorder(location: Any, said: str) -> Outcome:
    """Rank 1 and nobody else is named, as one whose GPU completes nothing."""
    if location is None or "culprits" not in location:
        return judged("by Flight Recorder dumps", False, f"laggard locate: {said or location}")
    found = [(each["ranks"], each["kind"], bool(each.get("device_stopped"))) for each in location["culprits"]]
    ends = ", its GPU no longer completes what it launched" if any(each[2] for each in found) else ""
    return judged("by Flight Recorder dumps", found == [([STUCK], "hung", True)], named(location) + ends)


def by_own_recording(location: Any) -> Outcome:
    culprits = (location or {}).get("culprits", [])
    others = [each["ranks"] for each in culprits if STUCK not in each["ranks"]]
    text = named(location) if location and "culprits" in location else f"laggard locate: {location}"
    return judged("by the ranks' recording", not others, text)


def next_process() -> Outcome:
    """Whether a new process gets the GPU and its work done."""
    command = [sys.executable, str(JOBS / "next.py")]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=job_environ(None), timeout=NEXT_SECONDS)
    except subprocess.TimeoutExpired:
        return info("the next process", f"has not its work done after {NEXT_SECONDS} s: the driver holds the GPU")
    text = f"has its work done after {time.monotonic() - began:.1f} s"
    return info("the next process", text if done.returncode == 0 else main_line(done.stderr))
