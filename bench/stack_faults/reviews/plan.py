"""Which fault befalls which rank; and the mark that says that it has."""

from __future__ import annotations

import os
from pathlib import Path

FAULT = os.environ.get("REVIEWS_FAULT", "")
STEPS = int(os.environ.get("REVIEWS_STEPS", "40"))
WORKERS = int(os.environ.get("REVIEWS_WORKERS", "0"))
HANG_STEP = 20
BATCH = 4
SLOW_SECONDS = 0.25


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def mine(fault: str) -> bool:
    """Whether this rank has the fault."""
    return fault == FAULT and os.environ.get("REVIEWS_VICTIM") == str(rank())


def hangs(fault: str, step: int) -> bool:
    """Whether this rank hangs in this step; the mark is made then."""
    return mine(fault) and step == HANG_STEP and mark()


def mark() -> bool:
    Path(os.environ["REVIEWS_MARK"]).touch()
    return True


def folder() -> Path:
    """Where this job's files lie."""
    return Path(os.environ["REVIEWS_FOLDER"])
