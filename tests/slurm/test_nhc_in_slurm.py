"""NHC's own check lines, run by the gate on each node of a real SLURM."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.nhc import nhc_settings
from support.paths import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NODES = ("n1", "n2", "n3", "n4")
LIVE = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    if [ "$1" = --host-root ]; then shift 2; else words+=("$1"); shift; fi
done
LAGGARD_NODE=$SLURMD_NODENAME PYTHONPATH={source} exec {python} -m laggard "${{words[@]}}"
"""
"""laggard on this machine itself, since a recorded one runs no program; the node's name is SLURM's."""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as whom the checks run")
@pytest.mark.parametrize("itself", [False, True], ids=["a stand-in", "NHC itself"])
def test_nhcs_lines_run_on_each_node_and_drain_where_one_fails(cluster: Any, tmp_path: Path, itself: bool) -> None:
    nhc = nhc_settings(tmp_path, itself)
    for node in NODES:
        (tmp_path / f"mounted-{node}").touch()
    (tmp_path / "mounted-n3").unlink()
    lines = ["* || check_file_test -e /etc/passwd", f"* || check_file_test -e {tmp_path}/mounted-$LAGGARD_NODE"]
    text = json.dumps("\n".join(lines) + "\n")
    (tmp_path / "checks.yaml").write_text(f"nhc: {{{nhc}, lines: {text}, seconds: 50}}\n")
    (tmp_path / "expect.yaml").write_text(f"thresholds: {{site_checks: {{file: {tmp_path}/checks.yaml}}}}\n")
    cluster.set_laggard(LIVE.format(source=REPOSITORY / "src", python=sys.executable))
    cluster.configure(mode="enforce", flags=f"--only site_checks --expect {tmp_path}/expect.yaml")
    ran = [node for node in NODES if cluster.srun(node).stdout.split() == [node]]
    assert ran == ["n1", "n2", "n4"], cluster.log("n1")
    assert cluster.wait_settled("n3").startswith("drained laggard: SITE_CHECK_FAILED check_file_test")
    (tmp_path / "mounted-n3").touch()
    cluster.update("n3", "State=RESUME")
    assert cluster.srun("n3").stdout.split() == ["n3"], cluster.log("n3")
