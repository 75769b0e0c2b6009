"""Configuration files: YAML to typed, immutable values. A key that nobody knows is an error with its path."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from laggard.errors import UsageError

T = TypeVar("T", bound="Settings")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every configuration value: unknown keys are refused."""


def load(path: str | os.PathLike[str], kind: type[T]) -> T:
    """The settings in the YAML file at `path`. Raises UsageError naming the file and the key that is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}; check the path given to --config") from None
    return parse(text, kind, str(path))


def parse(text: str, kind: type[T], where: str) -> T:
    """The settings in `text`; `where` names their origin in errors."""
    import yaml  # not at the top: the gate has settings, and most often no file of them

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line} is not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    try:
        return msgspec.convert({} if tree is None else tree, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_plain(str(error))}") from None


def _plain(message: str) -> str:
    """msgspec's words, with the place in YAML terms: `$.a.b` is `a.b`."""
    return message.replace("`$.", "`").replace("Object contains unknown field", "unknown key")
