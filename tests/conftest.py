"""What several test folders need: a real training job's ranks, and a place for what tests leave to be looked at."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import memory

pytest_plugins = ("support.machines", "support.agents", "support.collectors")

# A busy machine is no defect: no test fails for its speed but where it says so.
settings.register_profile("laggard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laggard")


Ranks = list[subprocess.CompletedProcess[str]]


@pytest.hookimpl(tryfirst=True)  # before pytest decides on its own place
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go into memory, where there is room. Who says where, by --basetemp or PYTEST_DEBUG_TEMPROOT, gets
    them there, also to look at: those in memory go when the run ends."""
    if config.option.basetemp or os.environ.get("PYTEST_DEBUG_TEMPROOT") or not memory.has_room():
        return
    memory.remove_abandoned()
    folder = memory.OwnFolder(memory.MEMORY)
    config.add_cleanup(folder.remove)
    config.option.basetemp = str(folder.path / "t")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that import torch come last: see machinery/later.py."""
    items.sort(key=lambda item: item.get_closest_marker("torch") is not None)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the gate remembers of a test stays out of what it remembers of this machine."""
    os.environ["LAGGARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def launch(tmp_path: Path, launch_in: Callable[..., Ranks]) -> Callable[..., Ranks]:
    """Runs a script as the ranks of a job on this machine, as srun would; all must end well."""
    return functools.partial(launch_in, tmp_path)


@pytest.fixture(scope="session")
def launch_in() -> Callable[..., Ranks]:
    """The same with the folder for the ranks' files, for a job that several tests look at."""

    def run(
        place: Path,
        script: Path,
        words: Sequence[str] = (),
        ranks: int = 2,
        hooks: bool = True,
        extra: Mapping[str, str] | None = None,
    ) -> Ranks:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [sys.executable, *(("-m", "laggard", "run") if hooks else ()), str(script), *words]
        processes = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    "DS_ACCELERATOR": "cpu",
                    "LAGGARD_RANK_DIR": str(place / "ranks"),
                    "LAGGARD_JOB_ID": "test",
                    "LAGGARD_NODE": f"n{rank}",
                    **(extra or {}),
                },
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=100) for process in processes]
        finally:
            for process in processes:
                process.kill()
        results = [
            subprocess.CompletedProcess(command, process.returncode, out, err)
            for process, (out, err) in zip(processes, outputs, strict=True)
        ]
        for number, result in enumerate(results):
            assert result.returncode == 0, f"rank {number} ended with {result.returncode}:\n{result.stderr[-4000:]}"
        return results

    return run
