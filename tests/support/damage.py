"""What happens to files of a recorded machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def garble(path: Path) -> None:
    """Binary in its place, that no text codec takes."""
    remove(path)
    path.write_bytes(b"\x7fELF\0\xff\xfe" * 50)
