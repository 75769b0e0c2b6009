"""The verdict of `laggard locate` on what a part's ranks recorded. Standard library only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_check.jobs.launch import job_environ

SECONDS = 120


def locate(recording: Path) -> tuple[Any, str]:
    """Returns the verdict as JSON, and what there is to say where there is none."""
    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(recording), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=job_environ(None), timeout=SECONDS)
    try:
        return json.loads(done.stdout), done.stderr
    except ValueError:
        return None, f"ended with {done.returncode}: {done.stderr[-300:]}"


def named(location: Any) -> str:
    """Who is named, with how many times the time of the others."""
    texts = [
        f"ranks {each['ranks']} {each['kind']} in {each['phase']}"
        + (f" ({each['slowdown_ratio']:.2f})" if each.get("slowdown_ratio") else "")
        for each in location["culprits"]
    ]
    return f"{location['verdict']}: {', '.join(texts) or 'nobody is named'}"
