"""A user's command with names in braces, such as `srun {test} -b {min_bytes}`, as words. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from laggard.errors import UsageError

_NAME: Final = re.compile(r"\{([a-z_]+)\}")


def parse_command(text: str, known: Sequence[str], required: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the words of a template. Raises UsageError for a name that is not known, or a required one left out."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--command cannot be split into words: {error}") from None
    if not words:
        raise UsageError("--command is empty: give the command that a trial runs")
    names = {name for word in words for name in _NAME.findall(word)}
    wrong = sorted(names - set(known))
    if wrong:
        raise UsageError(f"--command has {{{wrong[0]}}}: the names are {', '.join(f'{{{each}}}' for each in known)}")
    missing = [name for name in required if name not in names]
    if missing:
        raise UsageError(f"--command lacks {{{missing[0]}}}: without it every trial would run the same")
    return words


def fill(words: Sequence[str], values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Returns the words with names replaced. A word that is one name becomes as many words as its value has."""
    found: list[str] = []
    for word in words:
        whole = _NAME.fullmatch(word)
        value = values.get(whole[1]) if whole else None
        if value is not None and not isinstance(value, str):
            found += value
        else:
            found.append(_NAME.sub(lambda match: _text(values, match), word))
    return found


def _text(values: Mapping[str, str | Sequence[str]], match: re.Match[str]) -> str:
    value = values.get(match[1])
    if value is None:
        return match[0]
    return value if isinstance(value, str) else " ".join(value)
