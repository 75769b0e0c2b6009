"""Ways to damage files of a recorded machine."""

import shutil
from pathlib import Path


def remove(path: Path) -> None:
    """Removes a file or a whole folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def garble(path: Path) -> None:
    """Replaces the file with bytes that are not text in any encoding."""
    remove(path)
    path.write_bytes(b"\x7fELF\0\xff\xfe" * 50)
