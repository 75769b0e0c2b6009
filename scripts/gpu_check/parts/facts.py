"""What other programs tell of the machine, kept for the repository's recorded machines and open questions. Nothing of
it is judged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from gpu_check.outcome import Context, Outcome, info, python_path, require_nvidia_gpu

SECONDS = 8
COMMANDS = {
    "smi.xml": ("nvidia-smi", "-q", "-x"),
    "topology.txt": ("nvidia-smi", "topo", "-m"),
    "nvlink.txt": ("nvidia-smi", "nvlink", "-s"),
    "dmesg.txt": ("dmesg",),
}


def run(context: Context) -> Iterator[Outcome]:
    require_nvidia_gpu()
    recorded = (sys.executable, "-m", "laggard", "record", "--mask", str(context.out / "machine"))
    for name, command in {**COMMANDS, "record.txt": recorded}.items():
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=3 * SECONDS if name == "record.txt" else SECONDS,
                env={**os.environ, "PYTHONPATH": python_path()},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            yield info(name, str(error))
            continue
        (context.out / name).write_bytes(done.stdout + done.stderr)
        yield info(name, f"exit {done.returncode}, {len(done.stdout)} bytes")
