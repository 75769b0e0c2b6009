"""Programs that a benchmark starts and waits for."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


def run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() does with text, but for Ctrl-C: the program, which it interrupts, too, may end what it has
    started. subprocess.run() kills it a quarter of a second later."""
    process = subprocess.Popen(command, text=True, **how)
    try:
        out, errors = process.communicate()
    except BaseException:
        process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
