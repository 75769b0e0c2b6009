"""Where further reviews come from."""

from __future__ import annotations

import multiprocessing
import queue
import subprocess
from typing import Any

from reviews import plan

_SHARDS: queue.Queue[int] = queue.Queue()
_PROCESSES: Any = None


def next_shard(step: int) -> None:
    if plan.FAULT == "queue":
        if not plan.hangs("queue", step):
            _SHARDS.put(step)
        _SHARDS.get()  # fault: queue
    elif plan.FAULT == "process_queue":
        next_of_processes(step)
    elif plan.FAULT == "subprocess" and step == plan.HANG_STEP:
        fetch("10000" if plan.hangs("subprocess", step) else "0")


def next_of_processes(step: int) -> None:
    global _PROCESSES
    if _PROCESSES is None:
        _PROCESSES = multiprocessing.get_context("fork").Queue()
    if not plan.hangs("process_queue", step):
        _PROCESSES.put(step)
    _PROCESSES.get()  # fault: process_queue


def fetch(seconds: str) -> None:
    subprocess.run(["sleep", seconds], check=True)  # fault: subprocess
