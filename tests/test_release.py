"""A release: its version is the same everywhere; manual page and completion are made from the parsers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from laggard import __version__
from laggard.cli import AGENT_PARTS, COMMANDS

PLACES = {
    "pyproject.toml": r'^version = "(.*)"$',
    "CHANGELOG.md": r"\A# .*?^## ([\d.]+): ",
    "deploy/helm/laggard/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "deploy/kubernetes/agent.yaml": r'image: "registry.example.org/laggard:(.*)"$',
    "deploy/kubernetes/examples/gated-job.yaml": r"image: laggard:(.*)$",
    "docs/openapi/agent.json": r'^  "version": "(.*)",$',
}
"""Where the version stands beside src/laggard/__init__.py: in the changelog as that of the newest entry."""


@pytest.mark.parametrize("path", PLACES)
def test_the_version_is_the_same_everywhere(path: str) -> None:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    flags = re.MULTILINE | (re.DOTALL if path == "CHANGELOG.md" else 0)
    found = re.findall(PLACES[path], text, flags)
    assert found and set(found) == {__version__}, f"{path} has {found}, laggard is {__version__}"


def test_the_changelog_has_no_entry_that_no_version_has() -> None:
    heads = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads and all(re.match(r"\d+\.\d+\.\d+: ", head) for head in heads), heads


@pytest.mark.slow
def test_manual_and_completion_have_every_command(tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="needs shtab and argparse-manpage (scripts/setup installs them)")
    pytest.importorskip("argparse_manpage", reason="needs argparse-manpage (scripts/setup installs it)")
    words = [sys.executable, REPOSITORY / "scripts" / "release.py", "--out", tmp_path, "manual", "completion"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "laggard.1").read_text().replace("\\-", "-")
    for command in (*COMMANDS, *AGENT_PARTS):
        assert f"{command.name}" in page and command.help in page, command.name
    assert "--gate" in page, "flags of the commands are there, too"
    bash = tmp_path / "laggard.bash"
    asked = f"source {bash}; COMP_WORDS=(laggard inc); COMP_CWORD=1; _shtab_laggard; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", asked], capture_output=True, text=True).stdout.split() == ["incidents"]
