"""Regular expressions that are compiled when they are first used. To compile those of all probes takes a tenth of a
gate's time, and most gates use a few: there is no line in the log, or no such device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

_USED = ("match", "fullmatch", "search", "finditer", "findall", "sub", "split")


class _LazyPattern:
    """Has the methods of a pattern, once the first is asked for. A mistake in the text is told then, as re.error."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update((each, getattr(compiled, each)) for each in _USED)
        return getattr(compiled, name)


if TYPE_CHECKING:

    def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
        """The regular expression `text`, to be used as re.compile() gives it."""
        ...

else:
    lazy_pattern = _LazyPattern
