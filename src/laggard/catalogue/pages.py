"""The pages of the finding codes, docs/findings/CODE.md, as they are installed with the package."""

from __future__ import annotations

import os

import laggard
from laggard.kit.errors import UsageError


def read_page(code: str) -> str:
    """Returns the page of `code`, which is installed with the package. Raises UsageError where it is not there."""
    path = os.path.join(os.path.dirname(os.path.abspath(laggard.__file__)), "findings", f"{code}.md")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"the page of {code} is not installed: {path}: {error.strerror}") from None
