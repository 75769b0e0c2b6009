"""The example of Ray Train with the real Ray and two workers: by `make test-ray`, in an environment that has it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from laggard.rankfile import RankFileReader

EXAMPLE = REPOSITORY / "docs" / "examples" / "ray_train.py"
STEPS = 1000  # 16,000 samples, two workers, batches of eight

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_example_of_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` runs this")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # its sockets lie there: 107 characters
        environ = {
            **os.environ,
            "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
            "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
            "RAY_TMPDIR": short,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        done = subprocess.run(
            [sys.executable, str(EXAMPLE)], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
    assert done.returncode == 0, done.stderr[-4000:]
    paths = sorted((tmp_path / "ranks").rglob("*.rank"))
    assert len(paths) == 2, "one of each worker, and none of Ray's other processes"
    for path in paths:
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and counters.errors == 0
            assert STEPS / 2 < counters.steps <= STEPS, "Ray ends its workers by force: the last 0.1 s may be lost"
            assert min(counters.phases_ns[1:4]) > 0, "forward, backward and optimizer are all recorded"
            assert "dp" in {lane.role for lane in file.lanes()}
    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(tmp_path / "recording"), "--format", "json"]
    located = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300).stdout)
    assert located["ranks_seen"] == 2, located
    assert any("killed" in note["text"] for note in located["notes"]), located["notes"]
