"""Writes a file that a user asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from laggard.kit.errors import UsageError


def write_whole(path: str, parts: Iterable[bytes]) -> None:
    """Writes the file in one step: whoever opens it meanwhile has the old one or the new one, and a full disk leaves
    the old one. Raises UsageError."""
    new = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.new")
    try:
        with open(new, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
