"""Training processes without torch: a session of the hooks, and what follows it, as `python -c`."""

import os
import subprocess
import sys
from pathlib import Path

SESSION = """
import ctypes, os, signal, sys, time
from laggard.rankfile import Lane
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.session import Session
session = Session(); session.open(); recorder = session.recorder
log = recorder.lane(Lane("all_reduce", "dp", "dp:0-1"), (0, 1))

def collective():
    log.append((log.next_word(), 1, 2_000_000_001, 2_000_000_000, 4096))

def step():
    for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
        recorder.enter(phase); recorder.leave()
    collective()
    recorder.end_step(recorder.step + 1)
"""


def environ_of(ranks: Path, rank: int = 0, **more: str) -> dict[str, str]:
    """One of two ranks, whose files are in `ranks`."""
    return {**os.environ, "LAGGARD_RANK_DIR": str(ranks), "RANK": str(rank), "WORLD_SIZE": "2", **more}


def train(script: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The script, run to its end."""
    return subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=300)


def start(script: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    """The script, which has said `ready`. Python's warnings are errors there."""
    words, pipe = [sys.executable, "-W", "error", "-c", script], subprocess.PIPE
    process = subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n", process.communicate()[1]
    return process
