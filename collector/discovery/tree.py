"""A file of YAML or JSON as plain values, within bounds, and what is wrong with it in one line."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import yaml

MAX_FILE_BYTES: Final = 4 << 20


class Unusable(Exception):
    """The file does not say what it should."""


def tree_of(path: str, body: bytes) -> Any:
    """The values in `body`: JSON where the path ends so, else YAML. Raises ValueError, RecursionError, or Unusable
    where it is too long, or empty: so is a file for a moment that is written anew in its place, and who means that
    there is nothing writes []."""
    if len(body) > MAX_FILE_BYTES:
        raise Unusable(f"it is longer than {MAX_FILE_BYTES} bytes")
    if not body:
        raise Unusable("it is empty: write [] where there is nothing")
    if path.endswith(".json"):
        return msgspec.json.decode(body)
    try:
        return yaml.safe_load(body)  # not libyaml's loader: nested deeply enough, it ends the process
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"it is not YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}") from None
