"""What comes with a release beside the programs: bill of materials, completion, manual page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from install_check_parts.pythons import run

INSTALLED = """
import importlib.metadata, json
print(json.dumps({it.name.lower().replace("_", "-"): it.version for it in importlib.metadata.distributions()}))
"""
TOOLS = ("pip", "setuptools", "wheel")


def check_bill(bill: Path, python: str) -> None:
    """It names what the wheel brought into the environment of `python`, and nothing else."""
    listed = {it["name"].lower().replace("_", "-"): it["version"] for it in json.loads(bill.read_text())["components"]}
    brought = {name: version for name, version in json.loads(run(python, "-c", INSTALLED).stdout).items()}
    differ = {name for name in listed.keys() | (brought.keys() - {*TOOLS}) if listed.get(name) != brought.get(name)}
    if differ:
        each = ", ".join(f"{name} {listed.get(name)}, here {brought.get(name)}" for name in sorted(differ))
        sys.exit(f"install-check: {bill.name} is not what the wheel installs: {each} (make release again)")
    print(f"  {bill.name}: {len(listed)} packages, as the wheel installs them", flush=True)


def check_papers(dist: Path) -> None:
    run("bash", "-n", dist / "laggard.bash")
    if shutil.which("zsh"):
        run("zsh", "-n", dist / "_laggard")
    print(f"  completion: bash{', zsh' if shutil.which('zsh') else '; NOT TRIED in zsh (apt: zsh)'}", flush=True)
    if not shutil.which("man"):
        print("  laggard.1: NOT TRIED (apt: man-db)", flush=True)
        return
    words = ["man", "--warnings", "-l", str(dist / "laggard.1")]
    page = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100", "LC_ALL": "C"}
    )
    if page.returncode or page.stderr or "healthcheck" not in page.stdout or "SYNOPSIS" not in page.stdout:
        sys.exit(f"install-check: {' '.join(words)}: {page.stderr[-1000:] or page.stdout[:500]}")
    print(f"  laggard.1: {len(page.stdout.splitlines())} lines", flush=True)
