"""What the live verdict says of real jobs: calm ones, and such in which one rank is killed, stopped or slowed.

    python bench/verdicts.py calm [--kinds ddp,accumulated,deepspeed] [--ranks 2,4,8] [--seconds 120] [--hog]
    python bench/verdicts.py faults [--faults SIGKILL,memory,...] [--ranks 4] [--times 10]

Each job has its own agent and collector, and gloo on this machine. Prints one line of Markdown a case. `memory` and
`quota` make a cgroup of version 1 for a rank, which takes root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laggard.collector.describe import sentence
from laggard.model import Location
from laggard.wire import decode, encode

LAGGARD = (sys.executable, "-m", "laggard")
JOB = Path(__file__).with_name("verdict_job.py")
CGROUPS = Path("/sys/fs/cgroup")
TRIES = 5
START_SECONDS = 10.0  # from the first steps on: not looked at
NAMED_SECONDS = 30.0  # from the fault to its name
SPIN = "while True: pass"


class Job:
    """A job's ranks in processes of their own, with an agent and a collector, as they are deployed."""

    def __init__(self, folder: Path, words: Sequence[str], ranks: int, record: bool) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[str]] = []
        self.ranks: list[subprocess.Popen[str]] = []
        try:
            agent = self._daemon("agent", "--node", "n0", "--rank-dir", str(folder / "ranks"))
            self._collector = self._daemon("collector", "--target", agent.removeprefix("http://"))
            self._agent = agent
            port = free_port()
            for rank in range(ranks):
                self.ranks.append(self._rank(words, rank, ranks, record, port))
        except BaseException:
            self.end()
            raise

    def _daemon(self, *words: str) -> str:
        command = [*LAGGARD, *words, "--web.listen-address", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._daemons.append(process)
        assert process.stderr is not None
        found = re.search(r"listening on (http\S+)", process.stderr.readline())
        assert found, f"{words[0]} did not start"
        return found[1]

    def _rank(self, words: Sequence[str], rank: int, ranks: int, record: bool, port: int) -> subprocess.Popen[str]:
        about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        settings = {"LAGGARD_RANK_DIR": self.folder / "ranks", "LAGGARD_JOB_ID": "job", "GLOO_SOCKET_IFNAME": "lo"}
        environment = {**os.environ, **{name: str(value) for name, value in {**about, **settings}.items()}}
        environment |= {"LAGGARD_RECORD_DIR": str(self.folder / "recording")} if record else {}
        command = [*LAGGARD, "run", str(JOB), *words]
        environment["OMP_NUM_THREADS"] = "1"
        null = subprocess.DEVNULL
        return subprocess.Popen(command, env=environment, stdout=null, stderr=null, text=True)

    def location(self) -> dict[str, Any]:
        return get(f"{self._collector}/api/v1/location?fresh=1")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = get(f"{self._agent}/api/v1/ranks")["ranks"]
        return rows

    def locate_recording(self) -> str:
        """The first line of what `laggard locate` says of the recording."""
        command = [*LAGGARD, "locate", "--trace", str(self.folder / "recording")]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.partition("\n")[0]

    def end(self) -> None:
        for process in (*self.ranks, *self._daemons):
            process.kill()
        for process in (*self.ranks, *self._daemons):
            process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def get(url: str) -> dict[str, Any]:
    for _ in range(TRIES):  # a busy machine answers late
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:
            document: dict[str, Any] = json.load(answer)
            return document
    raise OSError(f"{url} does not answer")


class Fault(NamedTuple):
    """`begin` does it to a rank; `kinds`: what the culprit may be called; `words`: what the sentence must say."""

    begin: Callable[[Job, int, contextlib.ExitStack], None]
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()
    recorded: bool = True  # a recording can tell, too


@contextlib.contextmanager
def running_job(kind: str, ranks: int, recorded: bool = False) -> Iterator[Job]:
    """A job that has trained for START_SECONDS."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        job = Job(Path(name), (kind, name), ranks, recorded)
        try:
            deadline = time.monotonic() + 180.0
            while not (len(rows := job.rows()) == ranks and all(row["steps"] > 10 for row in rows)):
                assert time.monotonic() < deadline, f"{len(rows)} of {ranks} ranks train"
                time.sleep(0.2)
            job.location()  # from here on the agent watches the ranks
            time.sleep(START_SECONDS)
            yield job
        finally:
            job.end()


@contextlib.contextmanager
def hog(cores: set[int]) -> Iterator[None]:
    """A process that takes all that it gets of these cores."""
    process = subprocess.Popen([sys.executable, "-c", SPIN], preexec_fn=lambda: os.sched_setaffinity(0, cores))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def pin(process: subprocess.Popen[str], cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def look_at_calm(kind: str, ranks: int, seconds: float, with_hog: bool) -> tuple[Counter[str], str]:
    """How often each verdict was given, one look a second, and the sentence of the first that is not `ok`."""
    counts: Counter[str] = Counter()
    first = ""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(running_job(kind, ranks))
        if with_hog:  # on a core of its own: the job has the others
            for process in job.ranks:
                pin(process, set(cores[:-1]))
            stack.enter_context(hog({cores[-1]}))
            time.sleep(5.0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            location = job.location()
            counts[location["verdict"]] += 1
            if location["verdict"] != "ok" and not first:
                first = said(location)
            time.sleep(1.0)
    return counts, first


def said(location: dict[str, Any]) -> str:
    return sentence(decode(encode(location), Location))


def to_file(how: str) -> Callable[[Job, int, contextlib.ExitStack], None]:
    return lambda job, rank, _: (job.folder / f"rank-{rank}").write_text(how) and None


def by_signal(number: signal.Signals) -> Callable[[Job, int, contextlib.ExitStack], None]:
    return lambda job, rank, _: job.ranks[rank].send_signal(number)


@contextlib.contextmanager
def cgroup(controller: str, process: subprocess.Popen[str], **limits: int) -> Iterator[None]:
    """The process alone in a cgroup of version 1."""
    path = CGROUPS / controller / f"laggard-bench-{process.pid}"
    path.mkdir()
    try:
        for name, value in limits.items():
            (path / name.replace("__", ".")).write_text(str(value))
        (path / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        process.kill()
        process.wait()
        time.sleep(0.2)
        path.rmdir()


def out_of_memory(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    stack.enter_context(cgroup("memory", job.ranks[rank], memory__limit_in_bytes=1 << 30))
    to_file("memory")(job, rank, stack)


def quota(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    limits = {"cpu__cfs_period_us": 100_000, "cpu__cfs_quota_us": 10_000}
    stack.enter_context(cgroup("cpu", job.ranks[rank], **limits))


def hogged(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    """Three hogs on the core of one rank; the others share the other cores."""
    cores = sorted(os.sched_getaffinity(0))
    for number, process in enumerate(job.ranks):
        pin(process, {cores[-1]} if number == rank else set(cores[:-1]))
    for _ in range(3):
        stack.enter_context(hog({cores[-1]}))


FAULTS = {
    "SIGKILL": Fault(by_signal(signal.SIGKILL), ("dead",), ("killed by SIGKILL",)),
    "memory": Fault(out_of_memory, ("dead",), ("SIGKILL", "out of memory")),
    "exception": Fault(to_file("exception"), ("dead",), ("exit status 1", "FloatingPointError")),
    "exit": Fault(to_file("exit"), ("dead",), ("exit status 1",)),
    "SIGSTOP": Fault(by_signal(signal.SIGSTOP), ("hung",), ("stopped",), recorded=False),
    "hog": Fault(hogged, ("slow_host", "slow_compute"), ("",), recorded=False),
    "quota": Fault(quota, ("slow_host", "slow_compute"), ("",), recorded=False),
}


def try_fault(fault: Fault, kind: str, ranks: int, victim: int) -> tuple[bool, bool, float, str]:
    """Whether the first culprit is that rank, of the right kind and in the right words, live and from the recording;
    after how many seconds, and what is said."""
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(running_job(kind, ranks, recorded=True))
        began = time.monotonic()
        fault.begin(job, victim, stack)
        location: dict[str, Any] = {}
        while time.monotonic() < began + NAMED_SECONDS:
            location = job.location()
            if is_named(location, fault, victim):
                break
            time.sleep(0.5)
        seconds = time.monotonic() - began
        named, text = is_named(location, fault, victim), said(location)
        recorded = True
        if fault.recorded:
            time.sleep(3.0)  # the others end
            told = job.locate_recording()
            recorded = told.startswith(f"Rank {victim} ") and "died first" in told
            text += "" if recorded else f" / recorded: {told}"
    return named, recorded, seconds, text


def is_named(location: dict[str, Any], fault: Fault, victim: int) -> bool:
    first = next(iter(location.get("culprits", ())), None)
    if first is None or location["verdict"] != "fail":
        return False
    return first["kind"] in fault.kinds and first["ranks"] == [victim] and all(w in said(location) for w in fault.words)


def calm(options: argparse.Namespace) -> int:
    print("| calm job | ranks | looks | ok | other | first other |\n|---|---|---|---|---|---|", flush=True)
    wrong = 0
    for _ in range(options.times):
        for kind in options.kinds.split(","):
            for ranks in map(int, options.ranks.split(",")):
                counts, first = look_at_calm(kind, ranks, options.seconds, options.hog)
                looks, ok = sum(counts.values()), counts["ok"]
                wrong += looks - ok
                name = f"{kind}{', beside a hog' if options.hog else ''}"
                print(f"| {name} | {ranks} | {looks} | {ok} | {looks - ok} | {first} |", flush=True)
    return 1 if wrong else 0


def faults(options: argparse.Namespace) -> int:
    print("| fault | named live | recorded | seconds, median | said |\n|---|---|---|---|---|", flush=True)
    missed = 0
    for name in options.faults.split(","):
        ranks = int(options.ranks.split(",")[0])
        tries = [try_fault(FAULTS[name], "ddp", ranks, number % ranks) for number in range(options.times)]
        live, recorded = sum(each[0] for each in tries), sum(each[1] for each in tries)
        missed += 2 * len(tries) - live - recorded
        seconds = sorted(each[2] for each in tries)[len(tries) // 2]
        text = next((each[3] for each in tries if not (each[0] and each[1])), tries[0][3])
        from_file = f"{recorded} of {len(tries)}" if FAULTS[name].recorded else "-"
        print(f"| {name} | {live} of {len(tries)} | {from_file} | {seconds:.1f} | {text} |", flush=True)
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calm", "faults"))
    parser.add_argument("--kinds", default="ddp,accumulated,deepspeed")
    parser.add_argument("--ranks", default=None, help="how many; default: 2,4,8 of calm jobs, 4 of others")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--hog", action="store_true", help="calm jobs beside a process that takes a core")
    parser.add_argument("--faults", default=",".join(FAULTS))
    options = parser.parse_args()
    options.ranks = options.ranks or ("2,4,8" if options.what == "calm" else "4")
    return calm(options) if options.what == "calm" else faults(options)


if __name__ == "__main__":
    raise SystemExit(main())
