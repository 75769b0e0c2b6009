"""The file that gives nodes their labels: patterns of node names, each with partition, rack and team. And how a file
of YAML or JSON is read, within bounds."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from laggard.collector.targets import MAX_LABEL_CHARACTERS, NodeLabels
from laggard.kit.words import printable_line

MAX_FILE_BYTES: Final = 4 << 20


class Unusable(Exception):
    """The file does not say what it should."""


def tree_of(path: str, body: bytes) -> Any:
    """The values in `body`: JSON where the path ends so, else YAML. Raises ValueError, RecursionError, or Unusable
    where it is too long, or empty: so is a file for a moment that is written anew in its place, and who means that
    there is nothing writes []."""
    if len(body) > MAX_FILE_BYTES:
        raise Unusable(f"it is longer than {MAX_FILE_BYTES} bytes")
    if not body:
        raise Unusable("it is empty: write [] where there is nothing")
    if path.endswith(".json"):
        return msgspec.json.decode(body)
    try:
        return yaml.safe_load(body)  # not libyaml's loader: nested deeply enough, it ends the process
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ValueError(f"it is not YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}") from None


MAX_NAMES: Final = 65_536
MAX_PATTERNS: Final = 256
"""The most names with `*`, `?` or `[...]`: each is compared with each node once the file has changed."""

_MAX_NAME_CHARACTERS: Final = 253  # of a name in DNS: RFC 1035
_MESSAGE_CHARACTERS: Final = 160
_WILD: Final = frozenset("*?[")
_FORM: Final = "write [{nodes: [r12-*], labels: {rack: r12}}]"


class _Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: str = ""
    rack: str = ""
    team: str = ""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...]
    labels: _Labels


class _Pattern(NamedTuple):
    regex: re.Pattern[str]
    place: int
    labels: NodeLabels


class LabelRules(NamedTuple):
    """The content of a file: labels of names, each with its entry's place there, and patterns in the file's order."""

    names: dict[str, tuple[tuple[int, NodeLabels], ...]] = {}
    patterns: tuple[_Pattern, ...] = ()

    def of(self, names: Iterable[str]) -> NodeLabels:
        """The labels of a node that has these names: each label of the first entry that gives it."""
        found = NodeLabels()
        for _, labels in sorted(self._matching(tuple(names)), key=lambda it: it[0]):
            found = found.over(labels)
        return found

    def _matching(self, names: tuple[str, ...]) -> Iterator[tuple[int, NodeLabels]]:
        for name in names:
            yield from self.names.get(name, ())
        for pattern in self.patterns:
            if any(pattern.regex.match(name) for name in names):
                yield pattern.place, pattern.labels


class LabelFile:
    """`path`, read again when it changes. `note`: what is wrong with it now, in one line; what it said last holds."""

    def __init__(self, path: str) -> None:
        """Raises Unusable where the file cannot be used."""
        self._path = path
        self._version, self.rules = _read(path)
        self.note = ""

    def look(self) -> None:
        try:
            if _version(os.stat(self._path)) != self._version:
                self._version, self.rules = _read(self._path)
            self.note = ""
        except (OSError, Unusable) as error:
            why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            self.note = f"{self._path} is not used, what it said last holds: {why}"


_Version = tuple[int, int, int]


def _read(path: str) -> tuple[_Version, LabelRules]:
    try:
        with open(path, "rb") as file:
            version = _version(os.fstat(file.fileno()))
            return version, _rules(path, file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        raise Unusable((error.strerror or str(error)).lower()) from None


def _version(stat: os.stat_result) -> _Version:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _rules(path: str, body: bytes) -> LabelRules:
    """Raises Unusable where the file is not a list of labels."""
    try:
        entries = msgspec.convert(tree_of(path, body), tuple[_Entry, ...] | None) or ()
    except (ValueError, RecursionError) as error:  # msgspec's and Unicode's are ValueErrors
        raise Unusable(printable_line(f"{error}; {_FORM}", _MESSAGE_CHARACTERS)) from None
    names: dict[str, list[tuple[int, NodeLabels]]] = {}
    patterns: list[_Pattern] = []
    for place, (name, labels) in enumerate(_each(entries)):
        if set(name) & _WILD:
            patterns.append(_Pattern(re.compile(fnmatch.translate(name)), place, labels))
        else:
            names.setdefault(name, []).append((place, labels))
        if len(patterns) > MAX_PATTERNS:
            raise Unusable(f"it has more than {MAX_PATTERNS} names with *, ? or [...]: list whole names")
        if place >= MAX_NAMES:
            raise Unusable(f"it has more than {MAX_NAMES} names")
    return LabelRules({name: tuple(found) for name, found in names.items()}, tuple(patterns))


def _each(entries: Iterable[_Entry]) -> Iterator[tuple[str, NodeLabels]]:
    for number, entry in enumerate(entries, 1):
        labels = NodeLabels(entry.labels.partition, entry.labels.rack, entry.labels.team)
        _expect_usable(number, entry.nodes, _MAX_NAME_CHARACTERS)
        _expect_usable(number, labels, MAX_LABEL_CHARACTERS)
        if not any(labels):
            raise Unusable(f"entry {number} gives no label: partition, rack or team")
        yield from ((name, labels) for name in entry.nodes)


def _expect_usable(number: int, texts: Iterable[str], most: int) -> None:
    for text in texts:
        if len(text) > most or not text.isprintable():
            said = printable_line(text, 40)
            why = f"is longer than {most} characters, or holds one that cannot be shown"
            raise Unusable(f"entry {number}: {said!r} {why}")
