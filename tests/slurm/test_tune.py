"""`laggard tune` whose trials are jobs of a real SLURM."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS

pytestmark = pytest.mark.slow
STAND_IN = f"{shlex.quote(sys.executable)} -S -E {shlex.quote(str(TESTS / 'support' / 'nccl_tests.py'))}"
COMMAND = f"srun -N 1 --export={{export}} {STAND_IN} {{test}} -b {{bytes}} -e {{bytes}}"
FEW = ("NCCL_ALGO", "NCCL_MIN_CTAS", "NCCL_NTHREADS", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_BUFFSIZE")


def _start(cluster: Any, folder: Path) -> subprocess.Popen[str]:
    left_out = [word for name in FEW for word in ("--leave-out", name)]
    command = [sys.executable, "-m", "laggard", "tune", "nccl", "--messages", "all_reduce:64M", "--transport", "roce"]
    command += ["--nodes", "4", "--local-ranks", "8", "--nccl-version", "2.27.5", "--study", str(folder / "study.db")]
    command += [*left_out, "--command", COMMAND, "--trials", "24", "--deadline", "5", "--format", "json"]
    environ = {**os.environ, "SLURM_CONF": str(cluster.folder / "slurm.conf"), "STAND_IN_TRAPS": "NCCL_MAX_CTAS=8:hang"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _jobs(cluster: Any) -> list[str]:
    return cluster.run("squeue", "-h", "-o", "%i %T %r %N").stdout.split("\n")[:-1]


def _wait_for(what: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)


def _wait_for_no_job(cluster: Any) -> None:
    """Which of them are left is in the message."""
    until = time.monotonic() + 300
    while jobs := _jobs(cluster):
        assert time.monotonic() < until, f"{jobs}\n{cluster.log('n1')}"
        time.sleep(0.1)


def test_each_trial_is_a_job_and_neither_a_hang_nor_an_end_leaves_one(cluster: Any, tmp_path: Path) -> None:
    """A campaign is ended while a trial runs, and goes on: the jobs end with it, and what was measured is kept."""
    with _start(cluster, tmp_path) as tuner:
        _wait_for(lambda: tuner.poll() is not None or (len(list(tmp_path.rglob("trial-*"))) > 4 and _jobs(cluster)))
        assert tuner.poll() is None, tuner.communicate()
        tuner.send_signal(signal.SIGTERM)
        tuner.communicate(timeout=300)
    assert tuner.returncode == 130
    _wait_for_no_job(cluster)
    with _start(cluster, tmp_path) as tuner:
        output, errors = tuner.communicate(timeout=240)
    assert tuner.returncode == 0, errors
    assert sum("measured before" in line for line in errors.splitlines()) >= 4, errors
    document = json.loads(output)
    assert "hung" in [each["status"] for each in document["trials"]], errors
    items = document["recommendation"]["items"]
    assert items and all((each["key"], each["recommended"]) != ("NCCL_MAX_CTAS", "8") for each in items)
    _wait_for_no_job(cluster)
