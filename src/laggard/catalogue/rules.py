"""Rules and what findings say, as data: a file for each source of readings or lines, a section for each kind of fault.

A section has the fields that its rows share: `code`, `severity`, `fix`, `commands`, and others that its reader knows.
Each line of `lines` is a row: a pattern and, behind ` -> `, what is said, with `{0}` or `{name}` for the pattern's
groups; before a bar in it stands the device. Without the arrow the section's `says` is said. A line that begins with a
bar, a plus or the arrow goes on with the row above it. `{NAME}` stands for a text of the section `macros`. Of several
rows that take a text the first counts.
"""

from __future__ import annotations

import configparser
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from laggard.catalogue.findings import finding
from laggard.kit.words import compiled
from laggard.model import Finding, Fix, Severity

_MACROS: Final = "macros"
_MACRO: Final = re.compile(r"\{([A-Z_]{2,})\}")
_NAMED: Final = re.compile(r"\{(\w+)\}")
_ARROW: Final = " -> "
_BAR: Final = " | "
_GOES_ON: Final = re.compile(r"\n(\||->|\+ )")
_JOINS: Final = {"|": "|", "->": " ->", "+ ": ""}


class Row(NamedTuple):
    kind: str
    """The section's name up to the first blank: sections of one kind have one advice."""
    pattern: str
    says: str
    device: str
    code: str
    severity: Severity | None
    """None: that of the code."""
    fix: Fix
    more: Mapping[str, str]
    """The section's other fields."""

    @property
    def regex(self) -> re.Pattern[str]:
        return compiled(self.pattern)

    def spoken(self, groups: Mapping[str, str | None], *numbered: str) -> tuple[str, str]:
        """The device and what is said of it, with the groups of a match."""
        named = defaultdict(str, {name: value or "" for name, value in groups.items()})
        device, says = (text.format(*numbered, **named) if text else "" for text in (self.device, self.says))
        return device.strip(), says.strip(" :")

    def found(
        self, evidence: Mapping[str, object] | None = None, severity: Severity | None = None, /, **named: object
    ) -> Finding:
        """A finding in the row's words, with what is `named` in them."""

        def filled(text: str) -> str:
            return _NAMED.sub(lambda match: str(named.get(match[1], match[0])), text)

        return finding(
            self.code,
            filled(self.device),
            filled(self.says),
            evidence=evidence or {},
            fix=filled(self.fix.text),
            commands=tuple(map(filled, self.fix.commands)),
            severity=severity or self.severity,
            action=filled(self.more.get("action", "")),
        )


class Table(NamedTuple):
    rows: tuple[Row, ...]
    sections: Mapping[str, Row]
    """By name, each without a pattern."""
    macros: Mapping[str, str]

    def of(self, kind: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind == kind)

    @property
    def advice(self) -> Mapping[str, Fix]:
        """By kind, also of kinds without rows."""
        return {kind: section.fix for kind, section in self.sections.items() if " " not in kind}

    def first(self, text: str) -> Row | None:
        """The first row that is found in a text."""
        return next((row for row in self.rows if row.regex.search(text)), None)


@cache
def read_table(path: str | os.PathLike[str]) -> Table:
    """Reads a file, once in a process."""
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    with open(path, encoding="utf-8") as file:
        parser.read_file(file)
    macros: dict[str, str] = {}
    for macro, text in parser[_MACROS].items() if _MACROS in parser else ():
        macros[macro] = _filled(text, macros)
    rows: list[Row] = []
    sections: dict[str, Row] = {}
    for section in parser.sections():
        if section != _MACROS:
            fields = {field: _filled(text, macros) for field, text in parser[section].items()}
            lines = _listed(fields.pop("lines", ""))
            sections[section] = _section(section.partition(" ")[0], fields, sections)
            rows += (_row(sections[section], line) for line in lines)
    return Table(tuple(rows), sections, macros)


def _filled(text: str, macros: Mapping[str, str]) -> str:
    """The text with each macro in it; braces of another kind stay."""
    joined = _GOES_ON.sub(lambda match: _JOINS[match[1]], text)
    return _MACRO.sub(lambda match: macros.get(match[1], match[0]), joined)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split("\n")))


def _section(kind: str, fields: dict[str, str], before: Mapping[str, Row]) -> Row:
    texts = {name: fields.pop(name, "") for name in ("code", "device", "says")}
    fix = Fix(" ".join(fields.pop("fix", "").split()), _listed(fields.pop("commands", "")))
    fix = before[kind].fix if kind in before and not fix.text else fix
    severity = Severity(fields.pop("severity")) if "severity" in fields else None
    return _row(Row(kind, "", "", texts["device"], texts["code"], severity, fix, fields), f"{_ARROW}{texts['says']}")


def _row(section: Row, line: str) -> Row:
    pattern, _, said = line.partition(_ARROW)
    device, bar, says = said.partition(_BAR)
    return section._replace(
        pattern=pattern,
        device=device if bar else section.device,
        says=(says if bar else said) or section.says,
    )
