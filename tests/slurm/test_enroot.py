"""The line of fstab in deploy/slurm/README.md for containers of enroot and pyxis, mounted by enroot's own program."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import REPOSITORY

README = REPOSITORY / "deploy" / "slurm" / "README.md"
ENROOT_MOUNT = shutil.which("enroot-mount")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace"),
    pytest.mark.skipif(ENROOT_MOUNT is None, reason="needs enroot-mount, of NVIDIA's package enroot"),
]

NODE = """
mount -t tmpfs -o nosuid,nodev run /run || exit 1
{make}
unshare --user --map-root-user --mount sh -c '{container}' || exit 2
ls -A /run/laggard/ranks 2>/dev/null; true
"""
CONTAINER = "{enroot_mount} --root {rootfs} {fstab} && touch {rootfs}/run/laggard/ranks/of-a-job"
"""What enroot does when a container starts, without privileges, and what a job does in it."""


def line_of_readme() -> str:
    found = re.search(r"`(/run/laggard/ranks [^`]*)`", README.read_text())
    assert found, "the line is not in the README"
    return found[1]


def start(folder: Path, make: str) -> subprocess.CompletedProcess[str]:
    rootfs, fstab = folder / "rootfs", folder / "50-laggard.fstab"
    rootfs.mkdir()
    fstab.write_text(line_of_readme() + "\n")
    container = CONTAINER.format(enroot_mount=ENROOT_MOUNT, rootfs=rootfs, fstab=fstab)
    script = NODE.format(make=make, container=container)
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_what_a_job_writes_is_in_the_nodes_rank_directory(tmp_path: Path) -> None:
    done = start(tmp_path, "install -d -m 1777 /run/laggard/ranks")
    assert (done.returncode, done.stdout) == (0, "of-a-job\n"), done.stderr
    assert not (tmp_path / "rootfs/run/laggard/ranks/of-a-job").exists(), "it is in the container's own directory"


def test_on_a_node_without_it_the_container_starts_all_the_same(tmp_path: Path) -> None:
    done = start(tmp_path, ":")
    assert (done.returncode, done.stdout) == (0, "") and "failed to mount: /run/laggard/ranks" in done.stderr
