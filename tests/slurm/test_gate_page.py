"""docs/tasks/slurm-gate.md as a reader would go through it, in a real SLURM."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.transcript import commands_of, run

PAGE = REPOSITORY / "docs" / "tasks" / "slurm-gate.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_unfit_node_is_drained_and_comes_back(cluster: Any, tmp_path: Path) -> None:
    """The cluster's gate has the scripts and settings that the page installs."""
    environment = {**os.environ, "SLURM_CONF": str(cluster.folder / "slurm.conf")}
    rejected, repaired = commands_of(PAGE)
    job, look = re.split(r"(?<=rejected\n)", rejected.script)
    cluster.configure(mode="enforce")
    cluster.set_machine("n2", "disk_full")
    run(rejected._replace(script=job, shown=rejected.shown[:1]), environment, tmp_path)
    cluster.wait_settled("n2")
    run(rejected._replace(script=look, shown=rejected.shown[1:]), environment, tmp_path)
    cluster.set_machine("n2", "plain")
    run(repaired, environment, tmp_path)
