"""What the live verdict says of real jobs: calm ones, and such in which one rank is killed, stopped or slowed.

    python bench/verdicts.py                     all that has no result yet; then the table
    python bench/verdicts.py --what calm --kinds ddp --ranks 2,4 --together 2 --limit 280
    python bench/verdicts.py --what SIGKILL,quota --times 10
    python bench/verdicts.py --table             the table of what there is

Each job has its own agent and collector, and gloo on this machine. Ranks of calm jobs are started as `laggard run`
starts them; those of the others are forks of a process that has torch, which saves half a minute a job. A case's result
is a line in RESULTS as soon as it is there, and what has a line is not run again: an interrupted run goes on where it
was. `memory` and `quota` make a cgroup of version 1 for a rank, which takes root.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from common.refused import known, refuse
from common.resumed import results
from common.scratch import scratch

from laggard.locate.describe import sentence
from laggard.model import Location
from laggard.wire import decode, encode

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.warm import Warm, WarmProcess

RESULTS = Path(__file__).resolve().parents[1] / "out" / "verdicts.jsonl"
LAGGARD = (sys.executable, "-m", "laggard")
JOB = Path(__file__).with_name("trainings") / "verdict_job.py"
CGROUPS = Path("/sys/fs/cgroup")
TRIES = 5
START_SECONDS = 10.0  # from the first steps on: not looked at
NAMED_SECONDS = 30.0  # from the fault to its name
STANDS_SECONDS = 12.0  # from the fault to the end of a job that does not end by itself
TRAINING_SECONDS = 240.0  # until all ranks train
SPIN = "while True: pass"
KINDS = ("ddp", "deepspeed", "huggingface", "accumulated")


class Job:
    """A job's ranks in processes of their own, with an agent and a collector, as they are deployed."""

    def __init__(self, folder: Path, words: Sequence[str], ranks: int, warm: Warm | None) -> None:
        """`warm`: what starts the ranks, which then record, too."""
        self.folder = folder
        self._warm = warm
        self.notes: dict[str, Any] = {}
        self._daemons: list[subprocess.Popen[str]] = []
        self.ranks: list[subprocess.Popen[str] | WarmProcess] = []
        try:
            agent = self._daemon("agent", "--node", "n0", "--rank-dir", str(folder / "ranks"))
            self._collector = self._daemon("collector", "--target", agent.removeprefix("http://"))
            self._agent = agent
            port = free_port()
            for rank in range(ranks):
                self.ranks.append(self._rank(words, rank, ranks, port))
        except BaseException:
            self.end()
            raise

    def _daemon(self, *words: str) -> str:
        command = [*LAGGARD, *words, "--web.listen-address", "127.0.0.1:0"]
        environ = {**os.environ, "LAGGARD_STATE_DIR": "/nonexistent"}  # no incident of another run, or of this machine
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._daemons.append(process)
        assert process.stderr is not None
        found = re.search(r"listening on (http\S+)", process.stderr.readline())
        assert found, f"{words[0]} did not start"
        return found[1]

    def _rank(self, words: Sequence[str], rank: int, ranks: int, port: int) -> subprocess.Popen[str] | WarmProcess:
        about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        settings = {"LAGGARD_RANK_DIR": self.folder / "ranks", "LAGGARD_JOB_ID": "job", "GLOO_SOCKET_IFNAME": "lo"}
        environment = {name: str(value) for name, value in {**about, **settings, "OMP_NUM_THREADS": 1}.items()}
        command = [*LAGGARD, "run", str(JOB), *words]
        if self._warm is not None:
            with _STARTING:
                recording = {"LAGGARD_RECORD_DIR": str(self.folder / "recording")}
                return self._warm.start(command[1:], {**environment, **recording})
        null = subprocess.DEVNULL
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=null, stderr=null, text=True)

    def location(self) -> dict[str, Any]:
        return get(f"{self._collector}/api/v1/location?fresh=1")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = get(f"{self._agent}/api/v1/ranks")["ranks"]
        return rows

    def locate_recording(self) -> str:
        """The first line of what `laggard locate` says of the recording."""
        command = [*LAGGARD, "locate", "--trace", str(self.folder / "recording")]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.partition("\n")[0]

    def locate_live_record(self) -> str:
        """The first line of what `laggard locate` says of what `locate --record` wrote of the live job."""
        held = self.folder / "held"
        subprocess.run(
            [*LAGGARD, "locate", "--collector", self._collector, "--record", str(held)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        command = [*LAGGARD, "locate", "--trace", str(held)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.partition("\n")[0]

    def kill_ranks(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait()

    def end(self) -> None:
        for process in (*self.ranks, *self._daemons):
            process.kill()
        for process in (*self.ranks, *self._daemons):
            process.communicate()


_STARTING = threading.Lock()


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
    """`begin` does it to a rank; `kinds`: what the culprit may be called; `words`: what the sentence must say.
    `recorded`: what the ranks' own recordings must say; empty where they cannot tell. `ends`: the others end, too."""

    begin: Callable[[Job, int, contextlib.ExitStack], None]
    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()
    recorded: str = "died first"
    ends: bool = True
    held: bool = True  # `locate --record` of the live job, read again, says the same


class Case(NamedTuple):
    """One job to look at. `what`: `calm`, or one of FAULTS."""

    what: str
    kind: str
    ranks: int
    number: int
    hog: bool = False


@contextlib.contextmanager
def running_job(kind: str, ranks: int, pace: float, warm: Warm | None = None) -> Iterator[Job]:
    """A job that has trained for START_SECONDS."""
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        job = Job(Path(name), (kind, name, str(pace)), ranks, warm)
        try:
            deadline = time.monotonic() + TRAINING_SECONDS
            while not (len(rows := job.rows()) == ranks and all(row["steps"] > 10 for row in rows)):
                assert all(process.poll() is None for process in job.ranks), "a rank ended before it trained"
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


def pin(process: subprocess.Popen[str] | WarmProcess, cores: set[int]) -> None:
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def look_at_calm(case: Case, options: argparse.Namespace, together: threading.Barrier, end: float) -> dict[str, Any]:
    """How often each verdict was given, one look a second, and the sentence of the first that is not `ok`. All jobs
    train before any is looked at; `end`, on the monotonic clock, is the last moment for a look."""
    counts: Counter[str] = Counter()
    first = ""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        stack.callback(together.abort)  # where this job fails, the others do not wait for it
        job = stack.enter_context(running_job(case.kind, case.ranks, options.pace))
        if case.hog:  # on a core of its own: the job has the others
            for process in job.ranks:
                pin(process, set(cores[:-1]))
            stack.enter_context(hog({cores[-1]}))
            time.sleep(START_SECONDS)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(TRAINING_SECONDS)
        began = time.monotonic()
        end = min(end, began + options.seconds)
        while time.monotonic() < end:
            location = job.location()
            counts[location["verdict"]] += 1
            if location["verdict"] != "ok" and not first:
                first = said(location)
            time.sleep(1.0)
        steps = job.rows()[0]["steps"]
    return {"counts": counts, "first": first, "seconds": round(time.monotonic() - began), "steps": steps}


def said(location: dict[str, Any]) -> str:
    return sentence(decode(encode(location), Location))


def to_file(how: str) -> Callable[[Job, int, contextlib.ExitStack], None]:
    return lambda job, rank, _: (job.folder / f"rank-{rank}").write_text(how) and None


def by_signal(number: signal.Signals) -> Callable[[Job, int, contextlib.ExitStack], None]:
    return lambda job, rank, _: job.ranks[rank].send_signal(number)


@contextlib.contextmanager
def cgroup(controller: str, process: subprocess.Popen[str] | WarmProcess, **limits: int) -> Iterator[Path]:
    """The process alone in a cgroup of version 1."""
    path = CGROUPS / controller / f"laggard-bench-{process.pid}"
    path.mkdir()
    try:
        for name, value in limits.items():
            (path / name.replace("__", ".")).write_text(str(value))
        (path / "cgroup.procs").write_text(str(process.pid))
        yield path
    finally:
        process.kill()
        process.wait()
        time.sleep(0.2)
        path.rmdir()


def out_of_memory(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    stack.enter_context(cgroup("memory", job.ranks[rank], memory__limit_in_bytes=1 << 30))
    to_file("memory")(job, rank, stack)


def quota(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    """A twentieth of a core. Where other work leaves the ranks no more than that, a quota does not bind: the result has
    the share of periods in which it did, `bound`."""
    limits = {"cpu__cfs_period_us": 100_000, "cpu__cfs_quota_us": 5_000}
    path = stack.enter_context(cgroup("cpu", job.ranks[rank], **limits))

    def note() -> None:
        statistics = dict(line.split() for line in (path / "cpu.stat").read_text().splitlines())
        job.notes["bound"] = round(int(statistics["nr_throttled"]) / max(int(statistics["nr_periods"]), 1), 2)

    stack.callback(note)


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
    "SIGSTOP": Fault(by_signal(signal.SIGSTOP), ("hung",), ("stopped",), "fell silent first", ends=False),
    "hog": Fault(hogged, ("slow_host", "slow_compute"), recorded="", held=False),
    "quota": Fault(quota, ("slow_host", "slow_compute"), recorded="", held=False),
}


ALONE = ("hog", "quota")
"""Faults that take a core: what else runs there would be slow, too."""


def try_fault(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Whether the first culprit is that rank, of the right kind and in the right words, and nobody else was accused
    before; live and from the recording; after how many seconds, and what is said."""
    fault, victim = FAULTS[case.what], case.number % case.ranks
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(running_job(case.kind, case.ranks, options.pace, options.warm))
        began = time.monotonic()
        fault.begin(job, victim, stack)
        location: dict[str, Any] = {}
        accused = ""
        while time.monotonic() < began + NAMED_SECONDS:
            location = job.location()
            if is_named(location, fault, victim):
                break
            if location["culprits"][:1] and location["culprits"][0]["ranks"] != [victim]:
                accused = accused or said(location)
            time.sleep(0.5)
        seconds = time.monotonic() - began
        named, text = is_named(location, fault, victim) and not accused, accused or said(location)
        live_record = job.locate_live_record() if fault.held else ""
        recorded = told = ""
        if fault.recorded:
            if fault.ends:
                time.sleep(3.0)
            else:
                time.sleep(max(0.0, began + STANDS_SECONDS - time.monotonic()))
                job.kill_ranks()
            told = job.locate_recording()
            recorded = "yes" if told.startswith(f"Rank {victim} ") and fault.recorded in told else "no"
        if not fault.held:
            job.notes["cpu_wait"] = {row["rank"]: row["cpu_wait"] for row in job.rows()}
    again = "yes" if live_record == text else "no" if fault.held else ""
    return {
        "named": named, "recorded": recorded, "again": again, "seconds": round(seconds, 1), "said": text,
        "told": told, "live_record": live_record, **job.notes,
    }  # fmt: skip


def is_named(location: dict[str, Any], fault: Fault, victim: int) -> bool:
    first = next(iter(location.get("culprits", ())), None)
    if first is None or location["verdict"] != "fail":
        return False
    return first["kind"] in fault.kinds and first["ranks"] == [victim] and all(w in said(location) for w in fault.words)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All cases that were asked for; of calm jobs the last of `runs` is beside a process that takes a core."""
    kinds, ranks = options.kinds.split(","), [int(number) for number in options.ranks.split(",")]
    for what in options.what.split(","):
        if what == "calm":
            for number in range(options.runs):
                beside = number == options.runs - 1
                yield from (Case(what, kind, count, number, beside) for count in ranks for kind in kinds)
        else:
            yield from (Case(what, "ddp", options.fault_ranks, number) for number in range(options.times))


def run_all(todo: Sequence[Case], options: argparse.Namespace, end: float) -> None:
    """Runs the cases, `together` at once; each adds its result to the file. None is begun that would end too late."""
    for what, group in itertools.groupby(todo, lambda case: (case.what, case.hog)):
        listed = list(group)
        at_once = 1 if what[0] in ALONE else options.together
        least = START_SECONDS + (options.seconds if what[0] == "calm" else NAMED_SECONDS)
        for first in range(0, len(listed), at_once):
            if time.monotonic() + least > end:
                return
            some = listed[first : first + at_once]
            together = threading.Barrier(len(some))
            with ThreadPoolExecutor(len(some)) as pool:
                list(pool.map(lambda case, barrier=together: run(case, options, barrier, end), some))


_WRITING = threading.Lock()


def run(case: Case, options: argparse.Namespace, together: threading.Barrier, end: float) -> None:
    try:
        result = look_at_calm(case, options, together, end - 10.0) if case.what == "calm" else try_fault(case, options)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"{case}: not measured, {error}", file=sys.stderr, flush=True)
        return
    loads = " ".join(f"{load:.0f}" for load in os.getloadavg())
    with _WRITING:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            print(json.dumps({"case": case, "load": loads, **result}), file=file)
    print(case, result, flush=True)


def table(found: dict[Case, dict[str, Any]]) -> str:
    lines = ["| calm job | ranks | runs | looks | ok | what the others said |", "|---|---|---|---|---|---|"]
    calm = sorted((case for case in found if case.what == "calm"), key=lambda case: (case.hog, case.kind, case.ranks))
    for (beside, kind, ranks), group in itertools.groupby(calm, lambda case: (case.hog, case.kind, case.ranks)):
        its = [found[case] for case in group]
        looks, ok = (sum(n for each in its for n in chosen(each)) for chosen in (_looks, _ok))
        said = "; ".join(dict.fromkeys(each["first"] for each in its if each["first"]))
        name = kind + (", beside a process that takes a core" if beside else "")
        lines.append(f"| {name} | {ranks} | {len(its)} | {looks} | {ok} | {said} |")
    lines += [
        "",
        "| fault | ranks | named | from the ranks' recordings | `locate --record`, read again | seconds | else |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for what in FAULTS:
        its = [result for case, result in found.items() if case.what == what]
        if its:
            lines.append(_fault_line(what, its))
    return "\n".join(lines)


def _looks(result: dict[str, Any]) -> list[int]:
    return list(result["counts"].values())


def _ok(result: dict[str, Any]) -> list[int]:
    return [result["counts"].get("ok", 0)]


def _fault_line(what: str, its: Sequence[dict[str, Any]]) -> str:
    def share(name: str) -> str:
        asked = [each[name] for each in its if each[name] != ""]
        return f"{sum(each in (True, 'yes') for each in asked)} of {len(asked)}" if asked else "-"

    seconds = sorted(each["seconds"] for each in its)
    wrong = [each["said"] for each in its if not each["named"]]
    wrong += [f"recorded: {each['told']}" for each in its if each["recorded"] == "no"]
    wrong += [f"again: {each['live_record']}" for each in its if each["again"] == "no"]
    times = f"{seconds[len(seconds) // 2]}, {seconds[-1]} at most"
    texts = "; ".join(dict.fromkeys(wrong))
    ranks = its[0]["case"][2]
    shares = " | ".join(share(name) for name in ("named", "recorded", "again"))
    return f"| {what} | {ranks} | {shares} | {times} | {texts} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(("calm", *FAULTS)), help="calm, and the faults")
    parser.add_argument("--kinds", default=",".join(KINDS[:3]), help=f"of calm jobs: {', '.join(KINDS)}")
    parser.add_argument("--ranks", default="2,4,8", help="of calm jobs")
    parser.add_argument("--seconds", type=float, default=120.0, help="for which a calm job is looked at")
    parser.add_argument("--runs", type=int, default=3, help="of each calm job, the last one beside a hog")
    parser.add_argument("--times", type=int, default=10, help="each fault")
    parser.add_argument("--fault-ranks", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.06, help="seconds of each forward pass that take no CPU")
    parser.add_argument("--together", type=int, default=1, help="how many jobs at once")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no more is begun")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    known(options.what.split(","), ("calm", *FAULTS), "case")
    known(options.kinds.split(","), KINDS, "kind of job")
    end = time.monotonic() + options.limit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if not options.table:
        done = results(options.out, Case)
        with contextlib.closing(Warm("deepspeed", "torch._dynamo")) as options.warm:
            run_all([case for case in cases(options) if case not in done], options, end)
    found = results(options.out, Case)
    if not found:
        refuse(f"nothing was run, and {options.out} has no results")
    text = table(found)
    options.out.with_suffix(".md").write_text(text + "\n")
    print(text)
    wrong = any(set(each.get("counts", {"ok"})) != {"ok"} or not each.get("named", True) for each in found.values())
    return 1 if wrong or not set(cases(options)) <= set(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
