"""A real training job on this machine: its ranks, started as srun would start them."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port
from support.warm import Warm

Ranks = list[subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(tmp_path: Path, launch_in: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Runs a script as the ranks of a job on this machine, as srun would; all must end well."""
    return functools.partial(launch_in, tmp_path)


@pytest.fixture(scope="session")
def launch_in(warm_torch: Warm, warm_deepspeed: Warm) -> Callable[..., Ranks]:
    """The same with the folder for the ranks' files, for a job that several tests look at. The first `fresh` ranks are
    new Python processes, which import torch themselves."""

    def run(
        place: Path,
        script: Path,
        words: Sequence[str] = (),
        ranks: int = 2,
        hooks: bool = True,
        extra: Mapping[str, str] | None = None,
        fresh: int = 0,
    ) -> Ranks:
        port = free_port()
        command = [*(("-m", "laggard", "run") if hooks else ()), str(script), *words]
        warm = warm_deepspeed if "import deepspeed" in script.read_text() else warm_torch
        with contextlib.ExitStack() as stack:
            processes: list[Any] = []
            for rank in range(ranks):
                environment = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "TMPDIR": str(place),
                    "OMP_NUM_THREADS": "1",
                    "DS_ACCELERATOR": "cpu",
                    "LAGGARD_RANK_DIR": str(place / "ranks"),
                    "LAGGARD_JOB_ID": "test",
                    "LAGGARD_NODE": f"n{rank}",
                    **(extra or {}),
                }
                processes.append(
                    start_fresh(command, environment) if rank < fresh else warm.start(command, environment)
                )
                stack.callback(processes[-1].kill)
            outputs = [process.communicate(timeout=300) for process in processes]
        results = [
            subprocess.CompletedProcess(command, process.returncode, out, err)
            for process, (out, err) in zip(processes, outputs, strict=True)
        ]
        for number, result in enumerate(results):
            assert result.returncode == 0, f"rank {number} ended with {result.returncode}:\n{result.stderr[-4000:]}"
        return results

    return run


def start_fresh(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The process `python WORDS`, with `environment` over this process's."""
    pipe = subprocess.PIPE
    command = [sys.executable, *words]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})
