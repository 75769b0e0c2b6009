"""The bill of materials that comes with a release."""

from __future__ import annotations

import json
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
