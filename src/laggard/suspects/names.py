"""The names of nodes as a scheduler has them, and as it writes lists of them. Pure.

A list is made for a command line (`sbatch --exclude=$(laggard exclude)`), so that a name with any other character than
host names have is none: an agent may report whatever it likes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from laggard.text.words import natural

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")
_NUMBERED: Final = re.compile(r"(.*?)([0-9]{1,15})")


def is_host_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class KnownNames:
    """The nodes that a scheduler knows. One of an agent's is the same, or is it without the domain, where one alone
    is."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._short = {_short(name): name for name in self._names}
        self._count = Counter(map(_short, self._names))

    def find(self, name: str) -> str | None:
        """The scheduler's name of it; None: it has none."""
        if name in self._names:
            return name
        short = _short(name)
        return self._short.get(short) if self._count[short] == 1 else None

    def __len__(self) -> int:
        return len(self._names)


def _short(name: str) -> str:
    return name.partition(".")[0]


def hostlist(names: Collection[str]) -> str:
    """The names as SLURM writes them: `n[1-3,7],gpu-a`, in the order of their numbers."""
    plain = [name for name in names if not _NUMBERED.fullmatch(name)]
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if found := _NUMBERED.fullmatch(name):
            groups.setdefault(found[1], []).append(found[2])
    words = [*dict.fromkeys(plain), *(word for prefix, own in groups.items() for word in _words(prefix, own))]
    return ",".join(sorted(words, key=natural))


def _words(prefix: str, numbers: Collection[str]) -> Iterator[str]:
    """Of numbers with zeros before them, those of one width are one list: SLURM counts n[08-11] so."""
    padded = {len(number) for number in numbers if number[0] == "0" and len(number) > 1}
    widths = {number: len(number) if len(number) in padded else 0 for number in numbers}
    for width in sorted(set(widths.values())):
        own = sorted(int(number) for number in numbers if widths[number] == width)
        runs = ",".join(_run(first, last, width) for first, last in _runs(own))
        yield f"{prefix}{own[0]:0{width}}" if len(own) == 1 else f"{prefix}[{runs}]"


def _run(first: int, last: int, width: int) -> str:
    return f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"


def _runs(numbers: Collection[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
