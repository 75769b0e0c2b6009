"""What a job is told by its environment: its case, whom it befalls, and for how many steps it trains."""

import os
from pathlib import Path

CASE = os.environ.get("ENGINE_CASE", "calm")
VICTIM = int(os.environ.get("ENGINE_VICTIM", "1"))
STEPS = int(os.environ.get("ENGINE_STEPS", "80"))
ODD_COLLECTIVE = os.environ.get("ENGINE_ODD_COLLECTIVE", "extra")
MARK = os.environ.get("ENGINE_MARK", "")
"""A file that is made when the fault begins."""
CPU_WORK = os.environ.get("ENGINE_WORK", "") == "cpu"
"""Whether half of the work is done by the CPU: what befalls the process from outside can slow only that."""
DISK = os.environ.get("ENGINE_DISK", "")
"""A file of which each step reads a part, past the page cache; empty: nothing is read."""

SLOW_FROM = max(STEPS // 10, 2)
"""The first step of a fault that lasts."""
FAULT_STEP = STEPS // 2
"""The step of a fault that happens once."""

step = 0
"""The step that this process is in."""


def rank() -> int:
    """This process's rank: by its process group once there is one, else by its launcher."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))


def is_victim() -> bool:
    """Whether the case befalls this process. After a launcher has started the job anew, nothing ends it again."""
    return rank() == VICTIM


def note_fault() -> None:
    """Tells the bench that the fault begins now."""
    if MARK:
        Path(MARK).touch()
