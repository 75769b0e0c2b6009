"""The pages about SLURM, as a reader goes through them."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import DATA, REPOSITORY
from support.ports import free_port
from support.transcript import commands_of, run

PAGE = REPOSITORY / "docs" / "start" / "slurm.md"

OWN_FOLDERS = (DATA / "slurm" / "own_folders.sh").read_text()
"""What the page installs below /etc goes into a layer that this shell alone sees."""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for an /etc of its own")
def test_a_cluster_gets_its_first_answers(cluster: Any, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "SLURM_CONF": str(cluster.folder / "slurm.conf"),
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "SLURM_GPUS_PER_NODE": "0",  # the stand-ins for GPUs of these nodes cannot train
    }
    for folder in ("docs/examples", "deploy/slurm"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    before = OWN_FOLDERS.format(laggard=programs / "laggard")
    for command in commands_of(PAGE):
        script = command.script.replace("--gpus-per-node 8", "--gpus-per-node 0")
        run(command._replace(script=script), environment, tmp_path, before, ("unshare", "--mount"), by_form=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for an /etc of its own")
def test_a_gate_is_proved_without_slurm(tmp_path: Path) -> None:
    """docs/prove-your-gate.md, with the scripts where docs/start/slurm.md installs them."""
    before = OWN_FOLDERS.format(laggard=Path(sys.executable).parent / "laggard")
    before += f"\ninstall -d /etc/laggard; cp -r {REPOSITORY / 'deploy/slurm'} /etc/laggard/slurm"
    for command in commands_of(REPOSITORY / "docs" / "prove-your-gate.md"):
        run(command, os.environ, tmp_path, before, ("unshare", "--mount"))


GATE_PAGE = REPOSITORY / "docs" / "tasks" / "slurm-gate.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_unfit_node_is_drained_and_comes_back(cluster: Any, tmp_path: Path) -> None:
    """The cluster's gate has the scripts and settings that the page installs."""
    environment = {**os.environ, "SLURM_CONF": str(cluster.folder / "slurm.conf")}
    rejected, repaired = commands_of(GATE_PAGE)
    job, look = re.split(r"(?<=rejected\n)", rejected.script)
    cluster.configure(mode="enforce")
    cluster.set_machine("n2", "disk_full")
    run(rejected._replace(script=job, shown=rejected.shown[:1]), environment, tmp_path)
    cluster.wait_settled("n2")
    run(rejected._replace(script=look, shown=rejected.shown[1:]), environment, tmp_path)
    cluster.set_machine("n2", "plain")
    run(repaired, environment, tmp_path)
