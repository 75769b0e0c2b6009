"""Configuration files: YAML to typed, immutable values. An unknown key is an error that names the key's path."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from laggard.errors import UsageError

T = TypeVar("T", bound="Settings")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base class of all settings: unknown keys are errors."""


def load(path: str | os.PathLike[str], settings_type: type[T]) -> T:
    """Returns the settings in the YAML file at `path`. Raises UsageError, which names the file and the key."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}; check the path given to --config") from None
    return parse(text, settings_type, str(path))


def parse(text: str, settings_type: type[T], where: str) -> T:
    """Returns the settings in `text`. Raises UsageError, in which `where` names the origin of the text."""
    import yaml  # not at the top: the gate rarely has a file of settings, and has to start fast

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line} is not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    try:
        return msgspec.convert({} if tree is None else tree, settings_type, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_yaml_message(str(error))}") from None


def _yaml_message(message: str) -> str:
    """Returns msgspec's message in the terms of YAML: `$.a.b` becomes `a.b`, a field is a key."""
    return message.replace("`$.", "`").replace("Object contains unknown field", "unknown key")
