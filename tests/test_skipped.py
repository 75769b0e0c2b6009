"""A run says at its end what it did not test for want of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY
from support.skipped import for_want_of_programs


def test_parts_are_named_once_with_the_programs_that_they_want() -> None:
    skipped = [
        ("tests/kubernetes/test_access.py::test_a", "Skipped: etcd, kube-apiserver not found; needs etcd and kubectl"),
        ("tests/kubernetes/test_access.py::test_b[x::y]", "Skipped: needs kubectl 1.24 or newer"),
        ("tests/slurm/test_gang.py::test_c", "Skipped: needs SLURM (slurmd): scripts/setup --system installs it"),
        ("tests/test_release.py", "Skipped: PROMTOOL IS NOT INSTALLED: unseen by Prometheus"),
        ("tests/rings/test_keep.py::test_d", "Skipped: needs root, and network namespaces"),
        ("tests/rings/test_ring.py::test_e", "Skipped: on this machine every user may read the kernel's log"),
    ]
    assert for_want_of_programs(skipped) == (
        "NOT TESTED, 4 skipped for want of a program: kubernetes (etcd, kube-apiserver, kubectl); slurm (SLURM); "
        "test_release.py (promtool)"
    )
    assert for_want_of_programs(skipped[4:]) == ""


@pytest.mark.slow
def test_a_run_without_a_control_plane_ends_with_it(tmp_path: Path) -> None:
    tests = [str(REPOSITORY / "tests" / "kubernetes" / "test_access.py"), "-p", "no:cacheprovider", "-n", "0"]
    environment = {**os.environ, "KUBE_BIN": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "--basetemp", str(tmp_path / "t"), *tests]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    *_, told, last = done.stdout.splitlines()
    assert "NOT TESTED" in told and "kubernetes (etcd, kube-apiserver, kube-controller-manager)" in told, done.stdout
    assert "skipped" in last
