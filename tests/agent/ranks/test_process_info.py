"""What the agent reads from /proc about a rank's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.agent.ranks.row import ProcessInfo, read_process_info


@pytest.mark.parametrize(
    ("groups", "cgroup"),
    [
        ("0::/user.slice/session-1.scope\n", "/user.slice/session-1.scope"),
        ("0::/\n", ""),
        ("4:memory:/slurm/uid_0/job_7\n2:cpu:/\n0::/\n", "/slurm/uid_0/job_7"),
        ("0::/a:b\x1b\n", "/a:b?"),
        ("nonsense\n", ""),
        ("0::/" + "x" * 5000 + "\n", "/" + "x" * 511),
    ],
)
def test_what_the_kernel_knows_of_a_process(tmp_path: Path, groups: str, cgroup: str) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "status").write_text("Name:\tUid: 1 2 3\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\n")
    (tmp_path / "5" / "cgroup").write_text(groups)
    assert read_process_info(5, str(tmp_path)) == ProcessInfo((1000, 1001), cgroup)
    assert read_process_info(6, str(tmp_path)) is None
