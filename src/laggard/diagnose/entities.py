"""Who and what a paragraph names: hosts, pods, ranks, GPUs, jobs, spelled as they stand, and on which side of what is
told they are. Pure.

A line that complains is written by a witness; the process, the host or the rank that it names as its peer is the
suspect. So `Peer host: n16` is one, and `Local host: n13` the other.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from laggard.diagnose.rules import table


class Side(enum.Enum):
    SUSPECT = "suspect"
    WITNESS = "witness"
    UNKNOWN = "unknown"


class Entity(NamedTuple):
    kind: str
    """`host`, `pod`, `rank`, `GPU`, `NIC`, `device` or `job`."""
    name: str
    side: Side = Side.UNKNOWN


_TABLE: Final = table("entities")
_SUSPECT, _WITNESS, _LOST = (_TABLE.of(kind)[0].regex for kind in ("suspect", "witness", "lost"))
_NAMES: Final = tuple(row for row in _TABLE.rows if row.kind not in ("suspect", "witness", "lost"))
_CLAUSE: Final = re.compile(r"[!;]|[,.] ")
_LIST_ITEM: Final = re.compile(r"\s*$|\s+\S|[/*\[\d(-]")
_BRACKETS: Final = re.compile(r"\[[^\[\]]{0,80}\]")
_BEFORE: Final = 40
"""The number of characters before a name within which a word tells its side."""
_MAX_CHARACTERS: Final = 8000
_WORDS: Final = frozenset(("the", "is", "was", "has", "and", "name", "none", "localhost", "unknown", "not"))


def entities(paragraph: str) -> tuple[Entity, ...]:
    """Returns what a paragraph names, in its order, each once: of the same name with two sides, the known one."""
    found: dict[tuple[str, str], tuple[int, Side]] = {}
    offset, listed = 0, Side.UNKNOWN
    for line in paragraph[:_MAX_CHARACTERS].split("\n"):
        listed = listed if _LIST_ITEM.match(line) else Side.UNKNOWN
        for start, entity in _of_line(line):
            side = listed if entity.side is Side.UNKNOWN else entity.side
            key = entity.kind, entity.name
            if key not in found or found[key][1] is Side.UNKNOWN:
                found[key] = found.get(key, (offset + start,))[0], side
        if line.rstrip().endswith(":"):  # what it lists follows
            listed = _side(line.rpartition(". ")[2])
        offset += len(line) + 1
    ordered = sorted(found.items(), key=lambda item: item[1][0])
    return tuple(Entity(kind, name, side) for (kind, name), (_, side) in ordered)


def _of_line(line: str) -> Iterator[tuple[int, Entity]]:
    ends: list[int] = []
    for row in _NAMES:
        for match in row.regex.finditer(line):
            name = next(filter(None, match.groups()))
            begin = match.start(match.lastindex or 1)
            if name.lower() in _WORDS:
                continue
            told = _BRACKETS.sub("", line[max((end for end in ends if end <= begin), default=0) : begin])[-_BEFORE:]
            if row.pattern.startswith("^"):  # the head of whoever writes
                side = Side.WITNESS
            else:
                side = Side.SUSPECT if _LOST.match(line, match.end()) else _side(told)
            yield begin, Entity(row.kind, name, side)
            ends.append(match.end())


def _side(before: str) -> Side:
    """The side that the last telling word before a name gives it. Words before another name tell that one's."""
    clause = _CLAUSE.split(before)[-1]
    suspect, witness = (max((it.end() for it in each.finditer(clause)), default=-1) for each in (_SUSPECT, _WITNESS))
    if suspect == witness:
        return Side.UNKNOWN
    return Side.SUSPECT if suspect > witness else Side.WITNESS


def suspects(named: Iterable[Entity]) -> tuple[Entity, ...]:
    return tuple(each for each in named if each.side is Side.SUSPECT)


def only(named: Iterable[Entity], kind: str, side: Side | None = None) -> str:
    """The one name of this kind; empty: there is none, or there are several."""
    names = {each.name for each in named if each.kind == kind and side in (None, each.side)}
    return names.pop() if len(names) == 1 else ""
