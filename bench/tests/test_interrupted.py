"""Benchmarks that are interrupted, as by Ctrl-C in a terminal: nothing of what they started goes on, no network
namespace stays, and no temporary file."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from common.smallest import Run

pytestmark = [pytest.mark.slow, pytest.mark.apart, pytest.mark.timeout(420)]

PATIENCE_SECONDS = 200.0

RUNNING = (
    ("small_training", 1, ("all", "hook_peers")),
    ("laggard agent", 1, ("agent", "--bare", "--seconds", 600)),
    ("warm_server", 3, ("every_engine", "--engine", "ddp", "--case", "forward", "--out", "results.jsonl")),
    ("laggard collector", 1, ("fleet", "--nodes", 32, "--jobs", 3)),
    ("laggard healthcheck", 1, ("healthcheck",)),
    ("small_training", 1, ("hook_peers",)),
    ("spawn_main", 2, ("locate_quality", "--out", "out")),
    ("chrom", 1, ("page", "--ranks", 1024, "--loads", 1000)),
    ("prolog.sh", 1, ("prolog",)),
    ("warm_server", 4, ("real_quality", "--job", "ddp", "--fault", "none", "--out", "out")),
    ("spawn_main", 2, ("ring", "--pairs", 100_000)),
    ("warm_server", 4, ("soak", "--without-kubernetes", "--report", "soak.md")),
)
"""When a benchmark is interrupted: so many processes have these words in their command; and its words."""


@pytest.mark.parametrize(("command", "count", "words"), RUNNING, ids=[words[0] for *_, words in RUNNING])
def test_what_is_interrupted_leaves_nothing_behind(
    begin: Callable[..., Run], command: str, count: int, words: tuple[Any, ...]
) -> None:
    run = begin(*words)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run.running(command) < count:
        assert run.process.poll() is None and time.monotonic() < deadline, run.printed()
        time.sleep(0.1)
    os.killpg(run.process.pid, signal.SIGINT)
    run.wait(PATIENCE_SECONDS)
    assert not (left := run.left_behind()), f"left behind {left}: {run.printed()}"


def test_what_is_left_behind_is_found(begin: Callable[..., Run], tmp_path: Path) -> None:
    """A benchmark that leaves a process and a file."""
    script = tmp_path / "leaves.py"
    script.write_text(
        "import os, subprocess, sys, tempfile\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "tempfile.mkstemp()\n"
    )
    run = begin(str(script.with_suffix("")))
    run.wait(PATIENCE_SECONDS)
    process, file = run.left_behind(0.5)
    assert process.endswith(": sleep 600") and file.startswith(f"file {run.scratch}")
