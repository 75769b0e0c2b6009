"""docs/start/training.md as a reader would go through it: every command of it, with the ports and flags it has, in an
environment that has what the page installs, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.page_environment import make_environment
from support.paths import REPOSITORY
from support.transcript import commands_of, run

PAGE = REPOSITORY / "docs" / "start" / "training.md"
OWN_NETWORK = ("unshare", "--net")
"""The page's ports are laggard's own, which another daemon on this machine may have."""
BEFORE = "ip link set lo up"
AFTER = "kill $(jobs -p) && wait"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_a_training_job_gets_its_first_answers(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "docs" / "examples", tmp_path / "docs" / "examples")
    environment = {
        **os.environ,
        "PATH": f"{make_environment(tmp_path / 'installed', PAGE)}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
    }
    (tmp_path / "ranks").mkdir()
    for command in commands_of(PAGE):
        script = command.script
        if "&\n" in script:
            # A reader's shell goes on: here the daemons end, and the collector has scraped before the training begins.
            script = script.replace("localhost &\n", "localhost &\nsleep 5\n") + AFTER
        run(command._replace(script=script), environment, tmp_path, BEFORE, OWN_NETWORK, by_form=True)
    page = (tmp_path / "answer.html").read_text(encoding="utf-8")
    assert "Rank 2 on" in page and "is slow in forward" in page
    assert "Look at Model.forward (slow_rank.py:19), where rank 2 alone is" in page
    told = subprocess.run(
        [sys.executable, "-m", "laggard", "recommend", "recording"], cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout.startswith("Set what rank 2 alone does in Model.forward (slow_rank.py:19) to nothing"), told
