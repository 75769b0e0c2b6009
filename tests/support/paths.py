"""Where tests find the repository, their data, and recorded hardware that is not part of the repository."""

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
REPOSITORY: Final = TESTS.parent
DATA: Final = TESTS / "data"
MACHINES: Final = DATA / "machines"
TRAINING: Final = TESTS / "support" / "training"
DEMO_TRAINING: Final = REPOSITORY / "src" / "laggard" / "demo" / "train.py"
SHARED: Final = Path(os.environ.get("LAGGARD_SHARED") or REPOSITORY.parent / "shared")
"""Recorded hardware, where somebody has it: tests that read it are skipped elsewhere."""
