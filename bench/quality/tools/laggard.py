"""laggard, through its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from quality.answer import Named


def locate(trace: Path) -> list[Named]:
    """Asks `laggard locate --trace`."""
    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(trace), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"laggard locate exits {done.returncode}: {done.stderr.strip()[-500:]}")
    culprits = json.loads(done.stdout)["culprits"]
    return [
        Named(
            culprit["kind"],
            tuple(culprit["ranks"] or ()),
            tuple(end["node"] for end in culprit["link"]) if culprit.get("link") else (culprit["node"],),
            culprit["phase"],
            culprit["recoverable_ratio"],
        )
        for culprit in culprits
    ]
