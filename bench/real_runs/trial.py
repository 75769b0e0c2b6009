"""One run: a job is started, something befalls it once it trains, and its recording is kept beside its truth."""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from engines.processes import JOBS, Servers, of_job, of_rank
from support.namespaces import Namespaces

from real_runs.befall import LINK_RATE, CannotBefall, befall
from real_runs.catalogue import FAULT_OF, Run, engine_of, truth_of, victim_of

IN_NODE: Final = Path(__file__).with_name("in_node.py")
DISK_BYTES: Final = 16 << 20
ACTIVATIONS: Final = 2048
"""Numbers a row that go from stage to stage of a pipeline: 32 KiB a micro-batch, for which a link of LINK_RATE needs as
long as for a twentieth of a step. Messages of a few bytes would not be slower where the link is."""
IN_NETWORK: Final = ("link", "pair")
"""Faults for which nodes have links that are shaped."""
LOOK_SECONDS: Final = 0.2
STARTS_SECONDS: Final = 90.0
"""The longest time in which a job must begin to train."""
LIMIT_SECONDS: Final = 60.0
"""The longest time that a job trains with its fault; it is ended then, as by a user."""
STANDS_SECONDS: Final = 10.0
"""For so long a job may stand still, or outlive a rank."""
STEP: Final = re.compile(rb'"kind": ?"step"')
SLOW_FROM, ENDS_FROM = 3, 25
"""Steps that are recorded when a fault begins that lasts, and one that ends the job."""


class Failed(Exception):
    """The run made no recording that could be judged; the text says why."""


class Usage:
    """How much of the machine others use from now on: what makes a run say little of the fault."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy = busy_seconds()
        self._own: dict[int, float] = {}
        self.look()
        self._before = dict(self._own)

    def look(self) -> None:
        """Notes what the processes of this bench have used until now; those that end are gone after that."""
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._own[process.pid] = times.user + times.system

    def others(self) -> float:
        """The share of all CPUs that others used."""
        own = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._own.items())
        whole = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, busy_seconds() - self._busy - own) / whole


def busy_seconds() -> float:
    """For how long the machine's CPUs were not idle, all together, since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


class Bench(NamedTuple):
    """What all runs share: `folder` for their files, `steps` of each job."""

    servers: Servers
    folder: Path
    steps: int


def record(bench: Bench, run: Run, case: Path) -> dict[str, Any]:
    """Runs the job with its fault and writes the case: `trace`, its recording, and truth.json. Returns what is known of
    how it went. Raises Failed."""
    engine, recording = engine_of(run.job), case / "trace"
    folder = bench.folder / f"{run.job}-{run.fault}"
    folder.mkdir()
    disk = a_file(folder) if run.fault == "disk" else None
    began = time.monotonic()
    processes: list[Any] = []
    with contextlib.ExitStack() as until:
        nodes = until.enter_context(Namespaces(engine.ranks, LINK_RATE)) if run.fault in IN_NETWORK else None
        until.callback(end, processes)
        start(bench, run, recording, folder, nodes, disk, processes)
        fault = FAULT_OF[run.fault]
        wait_for_steps(recording, engine.ranks, ENDS_FROM if fault.ends else SLOW_FROM, processes)
        pids = [process.pid for process in processes]
        try:
            until.enter_context(befall(run.fault, pids, victim_of(run), nodes, disk or folder))
        except CannotBefall as why:
            raise Failed(str(why)) from why
        usage = Usage()
        watch(processes, STANDS_SECONDS if fault.ends else LIMIT_SECONDS, usage.look)
        steps = steps_of(recording, engine.ranks)
    (case / "truth.json").write_text(json.dumps(truth_of(run), indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    return {"seconds": round(time.monotonic() - began, 1), "steps": steps, "others": round(usage.others(), 2)}


def start(
    bench: Bench, run: Run, recording: Path, folder: Path, nodes: Namespaces | None, disk: Path | None,
    processes: list[Any],
) -> None:  # fmt: skip
    """Starts the ranks, each a node of its own, into `processes`."""
    engine = engine_of(run.job)
    of_all = {
        **of_job(folder),
        "ENGINE_STEPS": str(bench.steps),
        "ENGINE_WORK": "cpu",
        "ENGINE_ACTIVATIONS": str(ACTIVATIONS),
        "ENGINE_DISK": str(disk or ""),
        "LAGGARD_RANK_DIR": str(folder / "ranks"),
        "LAGGARD_JOB_ID": f"{run.job}-{run.fault}",
    }
    if nodes:
        of_all |= {"MASTER_ADDR": nodes.address(0), "GLOO_SOCKET_IFNAME": "eth0"}
    for rank in range(engine.ranks):
        environment = {**of_all, **of_rank(rank, engine.ranks), "LAGGARD_NODE": f"n{rank}"}
        script = [str(JOBS / engine.script), *engine.arguments]
        inside = [str(IN_NODE), nodes.path(rank)] if nodes else []
        words = ["-m", "laggard", "run", "--record", str(recording), *inside, *script]
        processes.append(bench.servers.start(engine.imports, words, environment))


def a_file(folder: Path) -> Path:
    path = folder / "data"
    path.write_bytes(os.urandom(DISK_BYTES))
    return path


def steps_of(recording: Path, ranks: int) -> list[int]:
    """How many steps each rank has recorded until now."""
    counts = [0] * ranks
    for rank in range(ranks):
        with contextlib.suppress(OSError):
            counts[rank] = len(STEP.findall((recording / f"rank-{rank}.jsonl").read_bytes()))
    return counts


def wait_for_steps(recording: Path, ranks: int, count: int, processes: Sequence[Any]) -> None:
    until = time.monotonic() + STARTS_SECONDS
    while min(steps_of(recording, ranks)) < count:
        if any(process.poll() is not None for process in processes):
            raise Failed(f"a rank ended before it trained: {last_words(processes)}")
        if time.monotonic() > until:
            raise Failed(f"{count} steps were not recorded within {STARTS_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def last_words(processes: Sequence[Any]) -> str:
    ended = next(process for process in processes if process.poll() is not None)
    text: str = ended.communicate(timeout=30)[1].strip()
    return text.splitlines()[-1][:200] if text else "it said nothing"


def watch(processes: Sequence[Any], seconds: float, look: Callable[[], None] = lambda: None) -> None:
    """Returns when all have ended, or after so many seconds; `look` is called meanwhile."""
    until = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        look()
        time.sleep(LOOK_SECONDS)


def end(processes: Sequence[Any]) -> None:
    """Ends what still runs: those that can as by a scheduler, then all."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in living(processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        watch(processes, 5.0)
    for process in processes:
        with contextlib.suppress(Exception):
            process.communicate(timeout=30)


def living(processes: Sequence[Any]) -> Iterator[Any]:
    return (process for process in processes if process.poll() is None)
