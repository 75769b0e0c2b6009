"""Traces of a real job on gloo in which a rank computes for longer, up to what `laggard locate --trace` prints."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import TRAINING

pytestmark = pytest.mark.slow


def test_a_real_jobs_traces_name_the_slow_rank(tmp_path: Path, launch: Callable[..., Any]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    launch(TRAINING / "profiled_loop.py", [str(folder), "2"], ranks=4, hooks=False)
    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=False)
    assert text.returncode == 1 and text.stdout.startswith("Rank 2 on "), text
    assert "is slow in forward" in text.stdout
    document = json.loads(subprocess.run([*command, "--format", "json"], capture_output=True, check=False).stdout)
    (culprit,) = document["culprits"]
    assert (culprit["ranks"], culprit["phase"], culprit["victims"]) == ([2], "forward", [0, 1, 3])
