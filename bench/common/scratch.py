"""Where benchmarks put files that go when they end."""

import os
import shutil
from pathlib import Path

MIN_FREE_BYTES = 2 << 30
_MEMORY = Path("/dev/shm")


def scratch() -> str | None:
    """The folder for files that are written once and read once: in memory, where there is room. TMPDIR comes first.
    None: where tempfile puts them."""
    if os.environ.get("TMPDIR") or not os.access(_MEMORY, os.W_OK):
        return None
    return str(_MEMORY) if shutil.disk_usage(_MEMORY).free > MIN_FREE_BYTES else None
