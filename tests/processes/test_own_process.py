"""The command by which laggard starts a process of its own, run as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from laggard.kit.processes import own_process


def test_it_finds_laggard_where_no_folder_of_pythons_has_it(tmp_path: Path) -> None:
    """With -I and -S Python looks in its own library alone: the command has to say where laggard is."""
    python, *words = own_process("laggard.kit.environment")
    done = subprocess.run([python, "-I", "-S", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
