"""scripts/release.py: manual page and completion are made from the parsers, and have every command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from laggard.cli import COMMANDS

pytest.importorskip("shtab", reason="needs shtab and argparse-manpage (scripts/setup installs them)")
pytest.importorskip("argparse_manpage", reason="needs argparse-manpage (scripts/setup installs it)")


@pytest.mark.slow
def test_manual_and_completion_have_every_command(tmp_path: Path) -> None:
    words = [sys.executable, REPOSITORY / "scripts" / "release.py", "--out", tmp_path, "manual", "completion"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "laggard.1").read_text().replace("\\-", "-")
    for command in COMMANDS:
        assert f"{command.name}" in page and command.help in page, command.name
    assert "--gate" in page, "flags of the commands are there, too"
    bash = tmp_path / "laggard.bash"
    asked = f"source {bash}; COMP_WORDS=(laggard inc); COMP_CWORD=1; _shtab_laggard; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", asked], capture_output=True, text=True).stdout.split() == ["incidents"]
