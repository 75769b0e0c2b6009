"""JSON that services answer with and people save: one document, or one a line."""

from __future__ import annotations

import json
from typing import Any, Final

from laggard.diagnose.file_content import FileContent

_MAX_CHARACTERS: Final = 8 << 20
_MAX_LINES: Final = 20_000


def documents(content: FileContent) -> list[Any]:
    """Returns the objects of a document, of a list, or of lines; empty where it is no JSON, or is too large."""
    text = content.text[: _MAX_CHARACTERS + 1].strip()
    if text[:1] not in ("{", "[") or len(text) > _MAX_CHARACTERS:
        return []
    whole = _parsed(text)
    if whole is None:
        return [each for line in text.split("\n")[:_MAX_LINES] if isinstance(each := _parsed(line), dict)]
    return [each for each in whole if isinstance(each, dict)] if isinstance(whole, list) else [whole]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def text_of(tree: object, *names: str) -> str:
    """The first of these fields that is a text or a number; empty: there is none."""
    found = (tree.get(name) for name in names) if isinstance(tree, dict) else iter(())
    return next((str(each) for each in found if isinstance(each, (str, int)) and not isinstance(each, bool)), "")


def list_of(tree: object, name: str) -> list[Any]:
    found = tree.get(name) if isinstance(tree, dict) else None
    return found if isinstance(found, list) else []
