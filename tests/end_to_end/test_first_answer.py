"""The pages about a training and Prometheus as a reader would go through them: every command, with the ports and flags
it has, in an environment that has what the page installs, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.page_environment import make_environment
from support.paths import REPOSITORY
from support.transcript import commands_of, run

PAGES = REPOSITORY / "docs" / "start"
OWN_NETWORK = ("unshare", "--net")
"""The page's ports are laggard's own, which another daemon on this machine may have."""
BEFORE = "ip link set lo up"
AFTER = "kill $(jobs -p) && wait"


def go_through(page: Path, folder: Path) -> None:
    shutil.copytree(REPOSITORY / "docs" / "examples", folder / "docs" / "examples")
    environment = {
        **os.environ,
        "PATH": f"{make_environment(folder / 'installed', page)}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "LAGGARD_RANK_DIR": str(folder / "ranks"),
    }
    (folder / "ranks").mkdir()
    for command in commands_of(page):
        script = command.script
        if "&\n" in script:
            # A reader's shell goes on: here the daemons end, and the collector has scraped before the training begins.
            script = script.replace("localhost &\n", "localhost &\nsleep 5\n") + AFTER
        run(command._replace(script=script), environment, folder, BEFORE, OWN_NETWORK, by_form=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_a_training_job_gets_its_first_answers(tmp_path: Path) -> None:
    go_through(PAGES / "training.md", tmp_path)
    page = (tmp_path / "answer.html").read_text(encoding="utf-8")
    assert "Rank 2 on" in page and "is slow in forward" in page
    assert "Look at Model.forward (slow_rank.py:19), where rank 2 alone is" in page
    told = subprocess.run(
        [sys.executable, "-m", "laggard", "recommend", "recording"], cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout.startswith("Remove what rank 2 alone does in Model.forward (slow_rank.py:19)"), told


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
def test_prometheus_gets_what_names_the_slow_rank(tmp_path: Path) -> None:
    page = PAGES / "prometheus.md"
    go_through(page, tmp_path)
    settings = re.search(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert settings
    rules = REPOSITORY / "deploy" / "prometheus"
    (tmp_path / "rules").mkdir()
    for name in ("rules.yml", "alerts.yml"):
        shutil.copy(rules / name, tmp_path / "rules")
    (tmp_path / "prometheus.yml").write_text(
        settings[1].replace("/etc/prometheus/laggard/*.yml", f"{tmp_path}/rules/*.yml")
    )
    words = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    checked = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and "2 rule files found" in checked.stdout, checked
