"""What is said of a real DeepSpeed job of four nodes: healthy, with a slow rank, host or link, and when a rank stops.

    python bench/node_verdicts.py                        each case that has no result yet, ten times; then the table
    python bench/node_verdicts.py --what forward,hog --times 3 --limit 280
    python bench/node_verdicts.py --table                the table of what there is
    python bench/node_verdicts.py --clocks --times 1     each node's clocks are its own: off, and drifting

A node is a network namespace with a link of its own, an agent and a rank; the collector stands in the middle. It takes
root and iproute2. A run is right where the live verdict names that rank, in the right phase or with the cause, before
anything else and alone; and where `laggard locate` says the same as the API and the page, and the recordings too. Ranks
are forks of a process that has DeepSpeed. A run's result is a line in RESULTS; what has a line is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.node_clocks import NodeClocks
from common.refused import known, need, refuse
from common.resumed import results
from common.scratch import scratch

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.namespaces import Namespaces
from support.warm import Warm, WarmProcess
from verdicts import LAGGARD, get, hog, pin, said

RESULTS = Path(__file__).resolve().parents[1] / "out" / "node_verdicts.jsonl"
SKEWED_RESULTS = RESULTS.with_name("node_clocks.jsonl")
BENCH = Path(__file__).resolve().parent
JOB = BENCH / "trainings" / "node_job.py"
NODES = 4
RATE = "1gbit"
SLOW_RATE = "100mbit"
PACE = 0.06
LATE = 0.06
TRAINING_SECONDS = 240.0  # until all ranks train
SETTLE_SECONDS = 10.0  # from then on until the fault
NAMED_SECONDS = 60.0  # from the fault to its name, at most
LOOKED_AT_SECONDS = 30.0  # where nothing is to be named
INTO_A_NAMESPACE = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from support.namespaces import enter
from common.node_clocks import become
enter(sys.argv[2])
if sys.argv[3]:
    become(sys.argv[3])
sys.argv[:4] = ["laggard"]
from laggard.cli import main
raise SystemExit(main())
"""


class Job:
    """An agent and a rank on each node, and a collector in the middle, where this process must be."""

    def __init__(
        self, spaces: Namespaces, warm: Warm, folder: Path, layout: str, port: int, clocks: NodeClocks | None = None
    ) -> None:
        self.spaces, self.folder, self._clocks = spaces, folder, clocks
        self._daemons: list[subprocess.Popen[str]] = []
        self.ranks: list[WarmProcess] = []
        try:
            agents = [self._agent(node) for node in range(NODES)]
            targets = [word for agent in agents for word in ("--target", agent)]
            command = [*LAGGARD, "collector", "--interval", "1", "--web.listen-address", "127.0.0.1:0", *targets]
            self.url = self._listening(self._kept(subprocess.Popen(command, text=True, **_PIPED)))
            self.ranks = [warm.start(self._words(rank, layout), self._environment(rank, port)) for rank in range(NODES)]
        except BaseException:
            self.end()
            raise

    def _agent(self, node: int) -> str:
        words = ("--node", f"n{node}", "--rank-dir", str(self.folder / f"n{node}"))
        address = ("--web.listen-address", f"{self.spaces.address(node)}:0")
        by_clocks = self._clocks.enter(node) if self._clocks else ()
        process = self._kept(self.spaces.start(node, [*by_clocks, *LAGGARD, "agent", *words, *address], {}, **_PIPED))
        return self._listening(process).removeprefix("http://")

    def _kept(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self._daemons.append(process)
        return process

    @staticmethod
    def _listening(process: subprocess.Popen[str]) -> str:
        assert process.stderr is not None
        found = re.search(r"listening on (http\S+)", first := process.stderr.readline())
        assert found, f"a daemon did not start: {first}"
        return found[1]

    def _words(self, rank: int, layout: str) -> list[str | Path]:
        run = ("run", JOB, layout, self.folder, str(PACE))
        clocks = self._clocks.described(rank) if self._clocks else ""
        return ["-c", INTO_A_NAMESPACE, f"{BENCH}:{BENCH.parent / 'tests'}", self.spaces.path(rank), clocks, *run]

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        return {
            "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": self.spaces.address(0), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0",
            "LAGGARD_NODE": f"n{rank}", "LAGGARD_JOB_ID": "job", "LAGGARD_RANK_DIR": str(self.folder / f"n{rank}"),
            "LAGGARD_RECORD_DIR": str(self.folder / "recording"),
        }  # fmt: skip

    def location(self) -> dict[str, Any]:
        return get(f"{self.url}/api/v1/location?fresh=1")

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/", timeout=60) as answer:
            return html.unescape(answer.read().decode())

    def locate(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*LAGGARD, "locate", *words], capture_output=True, text=True, timeout=120)

    def locate_live(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.locate("--collector", self.url, *words)

    def recorded(self) -> dict[str, Any]:
        """What the ranks' own recordings say."""
        document: dict[str, Any] = json.loads(
            self.locate("--trace", str(self.folder / "recording"), "--format", "json").stdout
        )
        return document

    def wait_until_it_trains(self) -> None:
        deadline = time.monotonic() + TRAINING_SECONDS
        while True:
            location = self.location()
            if location["ranks_seen"] == NODES and (location["window"]["last_step"] or 0) > 10:
                return
            ended = [rank.stderr.read()[-500:] for rank in self.ranks if rank.poll() is not None]
            assert not ended, f"a rank ended before it trained: {ended[0]}"
            assert time.monotonic() < deadline, f"it does not train: {said(location)}"
            time.sleep(0.3)

    def end(self) -> None:
        for process in (*self.ranks, *self._daemons):
            process.kill()
        for process in (*self.ranks, *self._daemons):
            process.communicate()


_PIPED: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

Begin = Callable[[Job, int, contextlib.ExitStack], None]


def late(phase: str, seconds: float = LATE, share: float = 1.0) -> Begin:
    def begin(job: Job, rank: int, _: contextlib.ExitStack) -> None:
        (job.folder / f"rank-{rank}").write_text(f"{phase} {seconds} {share}")

    return begin


def by_signal(number: signal.Signals) -> Begin:
    return lambda job, rank, _: job.ranks[rank].send_signal(number)


def slow_link(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    stack.callback(job.spaces.shape, rank, RATE)
    job.spaces.shape(rank, SLOW_RATE)


def hogs(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    """Processes on the core of one node's rank; the other ranks share the other cores. As many as leave that rank a
    third of what one of the others has: three alone would be no fault where three ranks share one core."""
    cores = sorted(os.sched_getaffinity(0))
    for number, process in enumerate(job.ranks):
        pin(process, {cores[-1]} if number == rank else set(cores[:-1]))
    sharing = (NODES - 1) / (len(cores) - 1)
    for _ in range(math.ceil(3 * sharing) - 1):
        stack.enter_context(hog({cores[-1]}))


def nothing(job: Job, rank: int, stack: contextlib.ExitStack) -> None:
    pass


class Fault(NamedTuple):
    """`begin` does it. `kinds`: what the culprit may be called, nothing where nobody is to be named; `phase`: where it
    is slow; `words`: what the sentence must say. `recorded`: what it is called in the ranks' recordings. `allowed`: the
    live verdicts where nobody is to be named."""

    begin: Begin
    kinds: tuple[str, ...] = ()
    phase: str = ""
    words: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    layout: str = "data"
    allowed: tuple[str, ...] = ("ok",)


_SLOW = ("slow_compute", "slow_host")

FAULTS: Mapping[str, Fault] = {
    "healthy": Fault(nothing),
    **{phase: Fault(late(phase), _SLOW, phase, recorded=_SLOW) for phase in ("forward", "backward", "optimizer")},
    "input": Fault(late("input"), ("slow_input",), "input", recorded=("slow_input",)),
    "sometimes": Fault(late("forward", share=0.25), _SLOW, "forward", recorded=_SLOW),
    "hog": Fault(hogs, _SLOW, recorded=_SLOW),
    "link": Fault(slow_link, ("slow_link",), "collective", recorded=("slow_link",), layout="pairs"),
    "SIGSTOP": Fault(by_signal(signal.SIGSTOP), ("hung",), words=("stopped",)),
    "SIGKILL": Fault(by_signal(signal.SIGKILL), ("dead",), words=("killed by SIGKILL",), recorded=("dead",)),
}


class Case(NamedTuple):
    what: str
    number: int


def is_right(location: Mapping[str, Any], fault: Fault, kinds: Sequence[str], victim: int) -> bool:
    """Whether that rank alone is named, as it should be. Where no kind is expected: whether nobody is."""
    if not kinds:
        return location["verdict"] in fault.allowed
    culprits = location["culprits"]
    if [each["ranks"] for each in culprits] != [[victim]] or culprits[0]["kind"] not in kinds:
        return False
    phase, node = culprits[0]["phase"], culprits[0]["node"]
    return node == f"n{victim}" and (not fault.phase or phase == fault.phase)


def follow(job: Job, fault: Fault, victim: int) -> dict[str, Any]:
    """Looks until a verdict is `fail`, or nobody is to be named and time is over. `said`: each sentence that was not
    like the one before, with its second."""
    began, told = time.monotonic(), [(0.0, said(job.location()))]
    healthy = not fault.kinds
    while True:
        location = job.location()
        seconds = time.monotonic() - began
        if without_numbers(said(location)) != without_numbers(told[-1][1]):
            told.append((round(seconds, 1), said(location)))
        over = location["verdict"] not in fault.allowed if healthy else location["verdict"] == "fail"
        if over or seconds > (LOOKED_AT_SECONDS if healthy else NAMED_SECONDS):
            break
        time.sleep(0.5)
    named = is_right(location, fault, fault.kinds, victim) and all(word in said(location) for word in fault.words)
    return {"named": named, "seconds": round(seconds, 1), "said": told}


def without_numbers(text: str) -> str:
    """What is said and of whom; how much, and after how many steps, changes from look to look."""
    return re.sub(r"\d+ steps?", "", text.partition(": fixing")[0])


def agreement(job: Job, fault: Fault) -> str:
    """Nothing where the API, the page and `laggard locate` say the same, else what they say."""
    location, page, text = job.location(), job.page(), job.locate_live()
    sentence = text.stdout.partition("\n")[0]
    meant = without_numbers(said(location))
    status = {"ok": 0, "fail": 1, "unknown": 2}[location["verdict"]]
    if without_numbers(sentence) == meant and text.returncode == status and meant.partition(":")[0] in page:
        return ""
    shown = re.search(r'id="sentence"[^>]*>([^<]*)', page)
    return f"API: {said(location)} Text: {sentence} ({text.returncode}) Page: {shown and shown[1]}"


def try_case(
    case: Case, spaces: Namespaces, warm: Warm, kept: Path | None = None, clocks: NodeClocks | None = None
) -> dict[str, Any]:
    """`kept`: where recordings are copied to that tell something else than they should. `clocks`: the nodes'."""
    fault, victim = FAULTS[case.what], case.number % NODES
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch())))
        job = Job(spaces, warm, folder, fault.layout, 20_000 + int(time.time()) % 5_000, clocks)
        stack.callback(job.end)
        job.wait_until_it_trains()
        time.sleep(SETTLE_SECONDS)
        before = job.location()
        inner = stack.enter_context(contextlib.ExitStack())
        fault.begin(job, victim, inner)
        result = follow(job, fault, victim)
        result["disagree"] = agreement(job, fault)
        result["healthy_before"] = before["verdict"] == "ok" or said(before)
        if fault.words:  # it stays as it is
            time.sleep(3.0)  # the others end
            result["held"] = held_again(job)
        if fault.recorded or not fault.kinds:
            found = job.recorded()
            result["recorded"] = is_right(found, fault, fault.recorded, victim)
            result["told"] = said(found)
            if not result["recorded"] and kept is not None:
                shutil.copytree(folder / "recording", kept / f"{case.what}-{case.number}", dirs_exist_ok=True)
    result["right"] = bool(
        result["named"] and not result["disagree"] and result["healthy_before"] is True
        and result.get("recorded", True) and not result.get("held")
    )  # fmt: skip
    return result


def held_again(job: Job) -> str:
    """Nothing where what `locate --record` wrote of the live job says the same, read again; else both."""
    held = str(job.folder / "held")
    live = job.locate_live("--record", held).stdout.partition("\n")[0]
    again = job.locate("--trace", held).stdout.partition("\n")[0]
    return "" if live == again else f"live: {live} again: {again}"


def run_all(todo: Sequence[Case], out: Path, end: float, with_clocks: bool = False) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    warm = Warm("deepspeed", "torch._dynamo")
    try:
        with contextlib.ExitStack() as stack:
            clocks = None
            if with_clocks:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                clocks = stack.enter_context(NodeClocks(folder).made())
            spaces = stack.enter_context(Namespaces(NODES, RATE))
            stack.enter_context(spaces.in_the_middle())
            for case in todo:
                if time.monotonic() + SETTLE_SECONDS + NAMED_SECONDS > end:
                    return
                try:
                    result = try_case(case, spaces, warm, out.with_suffix(".wrong"), clocks)
                except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
                    print(f"{case}: not measured, {error}", file=sys.stderr, flush=True)
                    continue
                loads = " ".join(f"{load:.0f}" for load in os.getloadavg())
                with out.open("a") as file:
                    print(json.dumps({"case": case, "load": loads, **result}), file=file)
                print(case.what, case.number, "right" if result["right"] else "WRONG", result, flush=True)
    finally:
        warm.close()


def table(found: Mapping[Case, Mapping[str, Any]]) -> str:
    lines = ["| case | named live | from the recordings | all right | seconds, median and most | what was wrong |"]
    lines += ["|---|---|---|---|---|---|"]
    for what in FAULTS:
        its = [result for case, result in found.items() if case.what == what]
        if not its:
            continue
        seconds = sorted(each["seconds"] for each in its)
        recorded = [each["recorded"] for each in its if "recorded" in each]
        from_recordings = f"{sum(recorded)} of {len(recorded)}" if recorded else "-"
        named, right = (sum(each[name] for each in its) for name in ("named", "right"))
        times = f"{seconds[len(seconds) // 2]}, {seconds[-1]}" if FAULTS[what].kinds else ""
        wrong = "; ".join(dict.fromkeys(_wrong(each) for each in its if not each["right"]))
        lines.append(
            f"| {what} | {named} of {len(its)} | {from_recordings} | {right} of {len(its)} | {times} | {wrong} |"
        )
    return "\n".join(lines)


def _wrong(result: Mapping[str, Any]) -> str:
    if result["healthy_before"] is not True:
        return f"before: {result['healthy_before']}"
    if not result["named"]:
        return f"live: {result['said'][-1][1]}"
    return str(result["disagree"] or result.get("held") or f"recorded: {result.get('told')}")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """One of each, then the next of each."""
    yield from (Case(what, number) for number, what in itertools.product(range(options.times), options.what.split(",")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(FAULTS), help="the cases")
    parser.add_argument("--times", type=int, default=10, help="each case")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no more is begun")
    parser.add_argument("--clocks", action="store_true", help="each node's clocks are its own, off and drifting")
    parser.add_argument("--out", type=Path, help="the results, else in out/")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    known(options.what.split(","), FAULTS, "case")
    options.out = options.out or (SKEWED_RESULTS if options.clocks else RESULTS)
    end = time.monotonic() + options.limit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    if not options.table:
        need("ip", "tc", root=True)
        done = results(options.out, Case)
        run_all([case for case in cases(options) if case not in done], options.out, end, options.clocks)
    found = results(options.out, Case)
    if not found:
        refuse(f"nothing was run, and {options.out} has no results")
    print(table(found))
    return 0 if set(cases(options)) <= set(found) and all(each["right"] for each in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
