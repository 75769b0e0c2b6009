"""docs/tasks as a reader would go through it: the commands of each page, and what the page shows of what they print."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.launchers import launchers
from support.page_environment import make_environment
from support.paths import DATA, REPOSITORY, TRAINING
from support.transcript import commands_of, run

pytestmark = pytest.mark.slow
PAGES = REPOSITORY / "docs" / "tasks"
OWN_NETWORK = ("unshare", "--net")
"""The page's ports are laggard's own, which another daemon on this machine may have."""
BEFORE = "ip link set lo up"
AFTER = "kill $(jobs -p) && wait"
ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"
READY = f"""
for port in 19400 19401; do
    until {sys.executable} -S -E -c '{ASK}' http://127.0.0.1:$port/-/ready 2>/dev/null; do sleep 0.2; done
done
"""
"""The agent has checked the node, the collector has asked the agent: a reader's job takes longer to begin."""


PAGE_OF = {
    "test_a_deepspeed_job_is_watched": "deepspeed.md",
    "test_profiler_traces_name_the_slow_rank": "profiler.md",
    "test_a_hang_is_read": "hang.md",
    "test_a_dead_job_is_diagnosed": "died.md",
    "test_a_training_is_tuned": "tune.md",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Where a page's commands are run: with the examples, and nothing else of the repository. laggard is that of an
    environment that has what the page installs; the trainings are started from the tests' own."""
    shutil.copytree(REPOSITORY / "docs" / "examples", tmp_path / "docs" / "examples")
    (tmp_path / "ranks").mkdir()
    page = PAGES / PAGE_OF[request.node.originalname]
    installed = make_environment(tmp_path / "installed", page, before=())
    monkeypatch.setenv("PATH", f"{installed}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LAGGARD_RANK_DIR", str(tmp_path / "ranks"))
    monkeypatch.setenv("LAGGARD_NODE", "n1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_a_deepspeed_job_is_watched(folder: Path, launch_in: Callable[..., Any]) -> None:
    (folder / "calm.yaml").write_text("skip: [cpu_speed]\n")
    with launchers(folder, launch_in, {"LAGGARD_NODE": "n1"}) as more:
        for command in commands_of(PAGES / "deepspeed.md"):
            script = command.script
            if "&\n" in script:
                # A reader's shell goes on: here the daemons end, and are up before the job begins.
                assert "localhost &\n" in script
                script = script.replace("localhost &\n", f"localhost &\n{READY}") + AFTER
                # Other tests keep the processors busy, which would explain a slow rank as well.
                script = script.replace("laggard agent &", "laggard agent --profile calm.yaml &")
            run(command._replace(script=script), {**os.environ, **more}, folder, BEFORE, OWN_NETWORK, by_form=True)


def test_profiler_traces_name_the_slow_rank(folder: Path, launch_in: Callable[..., Any]) -> None:
    with launchers(folder, launch_in) as more:
        for command in commands_of(PAGES / "profiler.md"):
            run(command, {**os.environ, **more}, folder, by_form=True)


def test_a_hang_is_read(folder: Path, launch_in: Callable[..., Any]) -> None:
    """The dumps of a real hang on gloo: a CPU build of torch has no NCCL to write them by itself."""
    (folder / "dumps").mkdir()
    launch_in(folder, TRAINING / "flight_recorder_dumps.py", [str(folder / "dumps"), "hang"], ranks=4, hooks=False)
    for flag in [*(folder / "dumps").glob("*.stuck"), *(folder / "dumps").glob("*.done")]:
        flag.unlink()
    for dump in (folder / "dumps").iterdir():  # the watchdog writes them when a collective has stood for minutes
        os.utime(dump, (time.time() + 600,) * 2)
    for command in commands_of(PAGES / "hang.md"):
        run(command, os.environ, folder, by_form=True)


def test_a_dead_job_is_diagnosed(folder: Path) -> None:
    shutil.copytree(DATA / "pasted", folder, dirs_exist_ok=True)
    shutil.copytree(DATA / "job_folders" / "deadlocked" / "files", folder / "job-4711")
    commands = commands_of(PAGES / "died.md")
    assert len(commands) == 11
    for command in commands:
        run(command, {**os.environ, "COLUMNS": "100"}, folder)


def test_a_training_is_tuned(folder: Path) -> None:
    """tuned_training.py stands in for torchrun and the training that it starts: it writes what hooks would record."""
    programs = folder / "bin"
    programs.mkdir()
    stand_in = REPOSITORY / "tests" / "support" / "tuned_training.py"
    (programs / "torchrun").write_text(f'#!/bin/bash\nexec {sys.executable} -S -E {stand_in} "${{10}}" "$7"\n')
    (programs / "torchrun").chmod(0o755)
    (folder / "ds_config.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 1}}'
    )
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for command in commands_of(PAGES / "tune.md"):
        run(command, environment, folder, by_form=True)
