"""The times and rates of one line of a text, whatever printed it: `name value`, `name: value unit`,
`name=value (mean)`, `value unit`.

What kind a number is of is told by its unit, by the unit within its name, or by a name that says `time`. Everything
else, as a loss, a learning rate, a norm or a size, is no quantity here: it rises and falls by design.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from laggard.diagnose.rules import patterns, table

MAX_LINE_CHARACTERS: Final = 1000
_MAX_QUANTITIES: Final = 32


_TABLE: Final = table("quantities")
_P: Final = patterns("quantities")
_PARTS: Final = {row.says: row.regex for row in _TABLE.of("part")}


def part_of_step(name: str) -> str:
    """Returns what a part of a step that computes nothing is spent on, by its name: data, checkpoint, communication or
    waiting; empty where it says none of them."""
    return next((part for part, words in _PARTS.items() if words.search(name)), "")


class Kind(enum.Enum):
    TIME = "time"
    """In seconds: more is slower."""
    RATE = "rate"
    """Something per second, bits for a link's: less is slower."""


class Quantity(NamedTuple):
    """`name`: in lower case with its words apart, without its unit; empty where a value has a unit alone. `mean`: the
    running mean that stands in brackets behind the value."""

    name: str
    value: float
    kind: Kind
    mean: float | None = None
    most: float | None = None
    """The second of two values, `(least, most)`, as of the least and the most over ranks."""
    shown: str = ""
    """The number and its unit, as they are printed."""


_SECONDS, _RATES = (
    {name: float(value) for name, value in _TABLE.sections[kind].more.items()} for kind in ("seconds", "rates")
)
_SCALE: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


class Loose(NamedTuple):
    """A number with a name that tells no kind: a time all the same, where its line or a line above it says so."""

    name: str
    value: float
    mean: float | None
    most: float | None
    shown: str

    def scaled(self, kind: Kind, factor: float) -> Quantity:
        mean, most = (None if it is None else it * factor for it in (self.mean, self.most))
        return Quantity(self.name, self.value * factor, kind, mean, most, self.shown)


def announced(line: str) -> float | None:
    """Returns the seconds of the unit in which a line says that times follow: `time across ranks (ms):`."""
    found = _P["announced"].search(line[:MAX_LINE_CHARACTERS])
    return _seconds(found[1]) if found else None


def quantities(line: str, unit: float | None = None) -> tuple[Quantity, ...]:
    """Returns the times and rates of a line, from left to right. `unit`: the seconds of the unit in which a line above
    announced times; None: none did. A part of a step without a unit is a time beside one without a unit. Of several
    with one name, as `Batch Time` and `Data Time`, the first alone has it: they are not one course."""
    text, own = line[:MAX_LINE_CHARACTERS], _P["announced"].search(line[:MAX_LINE_CHARACTERS])
    found = list(_numbers(text[own.end() :] if own else text))
    unit = _seconds(own[1]) if own else unit if len(found) == 1 else None
    plain = any(isinstance(it, Quantity) and it.kind is Kind.TIME and it.name for it in found)
    factor = unit if unit is not None else 1.0 if plain else None
    chosen = (
        it.scaled(Kind.TIME, factor) if isinstance(it, Loose) and factor and (unit or part_of_step(it.name)) else it
        for it in found
    )
    told = [it for it in chosen if isinstance(it, Quantity)]
    before = [[one.name for one in told[:place]].count(it.name) for place, it in enumerate(told)]
    return tuple(
        it._replace(name=f"{it.name} {count + 1}") if count and it.name else it
        for it, count in zip(told, before, strict=True)
    )


def _place(found: re.Match[str]) -> tuple[int, int]:
    """The place of the value; where it has a name and a unit, the name's."""
    return found.start("value"), found.start()


def _numbers(text: str) -> Iterator[Quantity | Loose]:
    at, pair, bare = 0, _P["pair"].search(text), _P["bare"].search(text)
    for _ in range(_MAX_QUANTITIES):
        pair = pair if pair is None or pair.start() >= at else _P["pair"].search(text, at)
        bare = bare if bare is None or bare.start() >= at else _P["bare"].search(text, at)
        found = min(filter(None, (pair, bare)), key=_place, default=None)
        if found is None:
            return
        unit = _P["unit"].match(text, found.end())
        at = unit.end() if unit else found.end()
        groups, mean = found.groupdict(), _P["mean"].match(text, at)
        raw, named, most = groups.get("name") or "", groups.get("named") or "", groups.get("most")
        known = (_of_unit(unit) if unit else None) or kind_of_name(raw, named)
        values = [number_of(it) if it else None for it in (found["value"], mean and mean[1], most)]
        name = "step" if unit and unit["each"] else name_of(raw)
        shown = text[found.start("value") : at].strip() if unit else f"{found['value']} {named}".strip()
        loose = Loose(name, values[0] or 0.0, values[1], values[2], shown)
        yield loose if known is None else loose.scaled(*known)


def number_of(text: str) -> float:
    return float(text.replace(",", ""))


@lru_cache(4096)
def name_of(raw: str) -> str:
    """The name in lower case, its words apart, without its unit."""
    return " ".join(_P["split"].split(_P["of_name"].sub("", raw.strip()))).lower().strip()


@lru_cache(4096)
def kind_of_name(raw: str, unit: str = "") -> tuple[Kind, float] | None:
    """The kind of a quantity and what its values are multiplied by, by its name (`data_time`, `step_ms`,
    `samples_per_second`) and the unit that stands in brackets behind that. None: a name does not tell it."""
    if unit and (found := _P["unit"].fullmatch(unit)):
        return _of_unit(found)
    if unit == "t":  # a time, in seconds where nothing else is said
        return Kind.TIME, 1.0
    name = " ".join(_P["split"].split(raw)).lower()
    last = name.rpartition(" ")[2]
    if _P["per_second_name"].search(raw) or last in _RATES:
        return Kind.RATE, _RATES.get(last, 1.0)
    if _P["no_duration"].search(name):
        return None
    if found := next(filter(None, map(_P["of_name"].search, raw.split("/"))), None):
        return Kind.TIME, _seconds(found[1])
    return (Kind.TIME, 1.0) if _P["named_time"].search(name) else None


def _of_unit(unit: re.Match[str]) -> tuple[Kind, float] | None:
    if unit["bits"]:
        of_bytes = 8.0 if unit["bit"] in ("B", "byte", "bytes") else 1.0
        return Kind.RATE, of_bytes * _SCALE[unit["scale"].lower()]
    if unit["flops"]:
        return Kind.RATE, _SCALE[unit["flops"][0].lower() if unit["flops"][0] in "KMGTP" else ""]
    if unit["count"]:
        return Kind.RATE, 1.0
    return Kind.TIME, _seconds(unit["each"] or unit["time"])


def _seconds(unit: str) -> float:
    return _SECONDS.get(unit.replace("µ", "u")) or _SECONDS.get(unit.replace("µ", "u").rstrip("s"), 1.0)
