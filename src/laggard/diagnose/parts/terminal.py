"""Takes out of a text what a terminal does not show: colours, titles, carriage returns at the ends of lines."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\n]{0,200}\x07|\x1b[()][0-9A-Z]|\r(?=\n)")


def without_colours(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text or "\r" in text else text
