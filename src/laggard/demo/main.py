"""`laggard demo`: a real DeepSpeed job with one slow rank, an agent on each node, a collector, and the verdict."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from laggard.demo import job
from laggard.kit.constants import AGENT_PORT
from laggard.kit.environment import ENV_STATE_DIR
from laggard.kit.errors import UsageError
from laggard.kit.flags import duration
from laggard.kit.http_client import NoResponse, get
from laggard.kit.parts import Line
from laggard.kit.terminal import show


class ProgressBar:
    """Shows on standard error how far the demo has come: a line that is rewritten in a terminal, else one line for each
    stage."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = -1

    def stage(self, text: str) -> None:
        """A stage of the demo begins."""
        self._show(text, "\n")

    def step(self, step: int | None) -> None:
        """The collector's newest step is `step`; None: it has none yet."""
        if step is None and self._terminal:
            self._show("the ranks import torch and DeepSpeed", "")
        if step is None or step == self._last:
            return
        self._last = step
        if self._terminal:
            filled = 30 * (step + 1) // self._steps
            self._show(f"step {step + 1} of {self._steps} [{'#' * filled}{'.' * (30 - filled)}]", "")
            if step + 1 == self._steps:
                sys.stderr.write("\n")

    def _show(self, text: str, end: str) -> None:
        row = f"{time.monotonic() - self._began:5.1f} s  {text}"
        if self._terminal:
            row = "\r\x1b[K" + (row if end else row[: shutil.get_terminal_size().columns - 1])
        sys.stderr.write(row + end)
        sys.stderr.flush()


def fetch_location(url: str) -> dict[str, object]:
    """The collector's location document. Raises DemoError where the collector does not answer with one."""
    try:
        document = json.loads(get(f"{url}/api/v1/location", timeout_seconds=10.0).body)
    except (NoResponse, ValueError) as error:
        raise job.DemoError(f"the collector does not answer: {error}") from None
    if not isinstance(document, dict):
        raise job.DemoError("the collector answered with something else than a location")
    return document


def last_step(url: str) -> int | None:
    """The newest step of the collector's verdict; None before the first, or while the collector does not answer."""
    try:
        window = fetch_location(url)["window"]
    except job.DemoError:
        return None
    step = window["last_step"] if isinstance(window, dict) else None
    return step if isinstance(step, int) else None


def location_lines(location: dict[str, object]) -> list[Line]:
    """The location in words, as `laggard locate` prints it."""
    import msgspec

    from laggard.locate.describe import details, sentence
    from laggard.model import Location

    value = msgspec.convert(location, Location)
    return [Line(sentence(value), value.verdict.value), *(Line(f"  {line}") for line in details(value))]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="machines (default: 2)")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="ranks in all (default: 4)")
    parser.add_argument("--slow-rank", default="random", metavar="random|none|N", help="default: random")
    parser.add_argument("--slow-phase", default="random", choices=(*job.SLOW_PHASES, "random"), help="default: random")
    parser.add_argument(
        "--slow-by", type=duration(0.001, 60), default=0.1, metavar="TIME", help="each step (default: 100ms)"
    )
    parser.add_argument("--zero", type=int, default=2, choices=(0, 1, 2, 3), help="ZeRO stage (default: 2)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps (default: 40; with --slow-rank none: 160)"
    )
    parser.add_argument("--record", metavar="DIR", help="keep a recording, for `laggard locate --trace DIR`")
    parser.add_argument("--keep", action="store_true", help="leave the page up until Ctrl-C")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def main(arguments: argparse.Namespace) -> int:
    """Exits 0 only if the verdict is right: it names the injected rank and phase and no other, or nothing if
    nothing was injected. Exits 2 if it is unknown, as on a busy machine."""
    if arguments.steps is None:
        # A calm step takes some milliseconds: 40 of them are too short a time for any accusation, right or wrong.
        arguments.steps = 160 if arguments.slow_rank == "none" else 40
    _check_flags(arguments)
    injected = job.choose_fault(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    directory = Path(tempfile.mkdtemp(prefix="laggard-demo-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with job.create_nodes(arguments.nodes) as nodes, job.Processes(directory) as processes:
            location, url = _run(arguments, injected, nodes, processes, directory)
            status = judged(location, injected)
            _print_verdict(arguments, location, injected, status)
            if arguments.keep:
                _wait_for_interrupt(url)
        return status
    except job.DemoError as error:
        raise UsageError(f"the demo failed: {error}") from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_flags(arguments: argparse.Namespace) -> None:
    if not job.is_installed():
        raise UsageError("the demo needs torch and deepspeed; `pip install 'laggard[all]'`, or `make demo` in a clone")
    if not 1 <= arguments.nodes <= arguments.ranks <= 64 or arguments.ranks < 2:
        raise UsageError("a rank is slow beside its peers: give 2 to 64 ranks, and at most as many nodes")
    if arguments.steps < 12:
        raise UsageError("a verdict takes some steps: give at least 12")
    if arguments.record and Path(arguments.record).exists() and any(Path(arguments.record).iterdir()):
        raise UsageError(f"{arguments.record} is not empty: give --record a new directory")


def _run(
    arguments: argparse.Namespace,
    injected: job.Injected | None,
    nodes: tuple[job.DemoNode, ...],
    processes: job.Processes,
    directory: Path,
) -> tuple[dict[str, object], str]:
    """Runs agents, collector and ranks. Returns the collector's last location, and the address of its page."""
    progress = ProgressBar(arguments.steps)
    progress.stage(f"starting {arguments.nodes} agents, a collector and {arguments.ranks} ranks")
    rank_dirs = {node.name: directory / node.name for node in nodes}
    ranks = job.start_ranks(processes, arguments, nodes, rank_dirs, injected)
    for node in nodes:
        command = [*job.LAGGARD, "agent", "--node", node.name, "--rank-dir", str(rank_dirs[node.name])]
        processes.start(f"agent-{node.name}", [*command, "--web.listen-address", f"{node.address}:{AGENT_PORT}"], node)
    targets = [word for node in nodes for word in ("--target", f"{node.address}:{AGENT_PORT}")]
    command = [*job.LAGGARD, "collector", "--interval", "1", "--web.listen-address", "127.0.0.1:0", *targets]
    processes.start("collector", command, extra={ENV_STATE_DIR: str(directory)})  # no incident of this machine's own
    url = processes.wait_for_url("collector")
    progress.stage(f"the page is {url}/")
    check = partial(processes.check_running, "collector", *(f"agent-{node.name}" for node in nodes))
    while not processes.all_finished(ranks):
        check()
        progress.step(last_step(url))
        time.sleep(0.25)
    progress.stage("the job is done")
    return _final_location(url, arguments.steps, check), url


def _final_location(url: str, steps: int, check: Callable[[], None]) -> dict[str, object]:
    """The location after the collector has read the last step, and one more round for the slower agents."""
    deadline = time.monotonic() + 10.0
    while last_step(url) != steps - 1 and time.monotonic() < deadline:
        check()
        time.sleep(0.25)
    time.sleep(1.5)
    check()
    return fetch_location(url)


def judged(location: dict[str, object], injected: job.Injected | None) -> int:
    """The exit status: 0 if the verdict names the injected rank and phase, and nothing else; 2 if it is unknown, which
    is neither right nor wrong."""
    culprits = location["culprits"]
    assert isinstance(culprits, list)
    named = [(each["ranks"], each["phase"]) for each in culprits]
    if location["verdict"] == "ok" if injected is None else named == [([injected.rank], injected.phase)]:
        return 0
    return 2 if location["verdict"] == "unknown" else 1


def in_words(status: int) -> str:
    """What is said of a verdict, by the demo's exit status."""
    if status < 2:
        return f"The verdict is {'WRONG' if status else 'right'}."
    load = f"load {os.getloadavg()[0]:.0f}, {len(os.sched_getaffinity(0))} cores"
    return f"laggard could not tell, as happens on a busy machine ({load}): try again when it is idle, or --slow-by 1s."


def _print_verdict(
    arguments: argparse.Namespace, location: dict[str, object], injected: job.Injected | None, status: int
) -> None:
    if arguments.format == "json":
        print(json.dumps({**location, "injected": injected._asdict() if injected else None}), flush=True)
        return
    fault = f"rank {injected.rank} in {injected.phase}, {arguments.slow_by:g} s a step" if injected else "nothing"
    show([*location_lines(location), Line(f"Injected: {fault}. {in_words(status)}", ("ok", "fail", "unknown")[status])])


def _wait_for_interrupt(url: str) -> None:
    """Waits for SIGINT or SIGTERM. They are blocked meanwhile: so none is missed that comes before the wait begins, and
    SIGINT counts although a shell that starts commands in the background has them ignore it."""
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        print(f"The page stays at {url}/ until Ctrl-C.", file=sys.stderr, flush=True)
        signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
