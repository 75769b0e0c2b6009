"""The tests see none of what laggard keeps of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import os, sys
from support.own_machine import hide_state
folder, missing = sys.argv[1:]
print(hide_state((folder, missing)), os.listdir(folder), os.path.exists(missing))
open(folder + "/of-a-test", "w").close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")
def test_what_the_machine_keeps_is_hidden_and_stays(tmp_path: Path) -> None:
    state = tmp_path / "laggard"
    state.mkdir()
    (state / "last_ring.json").touch()
    command = (sys.executable, "-c", HIDDEN, str(state), str(tmp_path / "missing"))
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.stdout.startswith("False"):
        pytest.skip("needs a mount namespace")
    assert done.stdout == "True [] False\n", done.stderr
    assert [each.name for each in state.iterdir()] == ["last_ring.json"]


def test_what_deepspeed_builds_is_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    assert Path(os.environ["TORCH_EXTENSIONS_DIR"]).parent in (base, base.parent)
