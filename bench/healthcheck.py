"""How long `laggard healthcheck` takes from start to exit: on this machine beside a bare interpreter, on a recorded
node with 8 GPUs and 10 RDMA NICs, with a probe that hangs, and with the agent's report. `--pairs N`."""

import argparse
import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.figures import Figure, interleaved, quartiles, show

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.materialise import materialise
from support.ports import free_port

BUDGET_SECONDS = 0.2
BUDGET_RECORDED_SECONDS = 0.3
DEADLINE_SECONDS = 1.0
BUDGET_PAST_DEADLINE_SECONDS = 0.2

LAGGARD = (sys.executable, "-m", "laggard", "healthcheck")
RECORDED = "hgx_h100"


def seconds(*command: str) -> float:
    """Measures from start to exit, with compiled modules, as pip installs them. Some environments forbid Python to
    write compiled modules; then every start compiles laggard anew, which takes as long as all the rest."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=_environment())
    return time.perf_counter() - started


@functools.cache
def _environment() -> dict[str, str]:
    compiled = tempfile.mkdtemp(prefix="laggard-bench-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    removed = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    return {
        **{name: value for name, value in os.environ.items() if name not in removed},
        "PYTHONPYCACHEPREFIX": compiled,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21, help="how many pairs of runs, bare and laggard in turn")
    pairs = max(2, parser.parse_args().pairs)
    with tempfile.TemporaryDirectory() as folder:
        figures = [*_here(pairs), *_recorded(pairs, Path(folder)), *_from_the_agent(pairs)]
        fits = show("healthcheck, start to exit", figures)
    return 0 if fits else 1


def _here(pairs: int) -> Iterator[Figure]:
    seconds(*LAGGARD)  # compiles
    timed = interleaved(pairs, lambda: seconds(sys.executable, "-c", "pass"), lambda: seconds(*LAGGARD))
    yield quartiles("python -c pass", [bare for bare, _ in timed], "s")
    yield quartiles("laggard healthcheck", [checked for _, checked in timed], "s", BUDGET_SECONDS)


def _recorded(pairs: int, folder: Path) -> Iterator[Figure]:
    """Times the recorded node, and the same with a mount table that blocks its reader for ever."""
    healthy, hung = (materialise(RECORDED, folder / name) for name in ("healthy", "hung"))
    (hung / "proc/self/mounts").unlink()
    os.mkfifo(hung / "proc/self/mounts")
    deadline = ("--deadline", str(DEADLINE_SECONDS))
    yield _timed("8 GPUs, 10 NICs, recorded", pairs, BUDGET_RECORDED_SECONDS, "--host-root", str(healthy))
    yield _timed(
        f"the same, one probe hangs, --deadline {DEADLINE_SECONDS:g}",
        max(2, pairs // 3),
        DEADLINE_SECONDS + BUDGET_PAST_DEADLINE_SECONDS,
        "--host-root",
        str(hung),
        *deadline,
    )


def _from_the_agent(pairs: int) -> Iterator[Figure]:
    with _agent() as port:
        flags = ("--profile", "prolog", "--agent-port", str(port))
        if "(the agent)" in subprocess.run([*LAGGARD, *flags], capture_output=True, text=True).stdout:
            yield _timed("with the agent's report", pairs, BUDGET_SECONDS, *flags)
        else:
            print("the agent's report is not ok: its row is left out", file=sys.stderr)


@contextmanager
def _agent() -> Iterator[int]:
    """The port of an agent that has made its first round of probes."""
    port = free_port()
    command = [sys.executable, "-m", "laggard", "agent", "--web.listen-address", f"127.0.0.1:{port}"]
    agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not _has_made_a_round(port):
            if agent.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the agent makes no round of probes")
            time.sleep(0.2)
        yield port
    finally:
        agent.terminate()
        agent.wait(20)


def _has_made_a_round(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/report", timeout=10) as answer:
        return b"first round" not in answer.read()
    return False


def _timed(name: str, runs: int, budget: float, *flags: str) -> Figure:
    seconds(*LAGGARD, *flags)  # warms the caches
    return quartiles(name, [seconds(*LAGGARD, *flags) for _ in range(runs)], "s", budget)


if __name__ == "__main__":
    raise SystemExit(main())
