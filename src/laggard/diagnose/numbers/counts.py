"""Devices that are there beside those that should be: `allocatable` beside `capacity`, `found 7, expected 8`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.rules import patterns, table
from laggard.model import Finding, Severity

_P: Final = patterns("quantities")

_DEVICE: Final = r"(?:gpus?|hcas?|nics?|accelerators?|npus?|rdma|mlx\w*|infiniband)"
_MAX_LINES: Final = 20_000
_OF_DEVICES = re.compile(rf"(?:^|[./_ -]){_DEVICE}(?![a-z])", re.IGNORECASE)


class _Count(NamedTuple):
    have: int
    should: int
    of: str
    line: str
    host: str


def missing_devices(text: str, host: str = "") -> list[Finding]:
    lines = text.splitlines()[:_MAX_LINES]
    found = {
        (it.of, it.host): it for it in (*_of_sections(lines, host), *_of_lines(lines, host)) if it.have < it.should
    }
    return [_finding(it) for it in found.values()]


def _of_sections(lines: Sequence[str], host: str) -> Iterator[_Count]:
    """Sections of one name each, with the same keys: what a node has, and what it can give."""
    have: dict[str, tuple[int, str]] = {}
    should: dict[str, int] = {}
    path: list[tuple[int, str]] = []
    name = host
    for line in (*lines, "kind: Node"):
        found = _P["key"].match(line[:400])
        if found is None:
            continue
        depth, key, value = len(found[1].expandtabs()), found[2].strip(), found[3].strip()
        path = [it for it in path if it[0] < depth]
        if key == "kind" or (key.lower() == "name" and not path):  # another object of the same text
            yield from _compared(have, should, name)
            have, should, name = {}, {}, host
        section = path[-1][1] if path else ""
        if key.lower() == "name" and (not path or section == "metadata"):
            name = value
        elif _OF_DEVICES.search(key) and value.isdecimal() and len(value) < 6:
            if _P["have"].search(section):
                have[key] = int(value), line.strip()
            elif _P["should"].search(section):
                should[key] = int(value)
        path.append((depth, key))
    yield from _compared(have, should, name)


def _compared(have: dict[str, tuple[int, str]], should: dict[str, int], host: str) -> Iterator[_Count]:
    for key, (count, line) in have.items():
        if key in should:
            yield _Count(count, should[key], key, line, host)


def _of_lines(lines: Sequence[str], host: str) -> Iterator[_Count]:
    for line in lines:
        if _OF_DEVICES.search(line[:400]) and (found := _P["line"].match(line[:400])):
            device = re.search(rf"\b{_DEVICE}\b", line, re.IGNORECASE)
            yield _Count(int(found["have"]), int(found["all"]), device[0] if device else "", line.strip(), host)


def _finding(it: _Count) -> Finding:
    is_gpu = re.search(r"gpu|npu|accelerator", it.of, re.IGNORECASE) is not None
    words = table("numbers").sections["missing"]
    host = {"host": it.host} if it.host else {}
    return (words if is_gpu else words._replace(code="RDMA_DEVICE_MISSING")).found(
        {"line": it.line[:300], **host, "have": it.have, "of": it.should},
        Severity.CRITICAL if it.have == 0 else Severity.WARNING,
        of=it.of,
        where=f" on {it.host}" if it.host else "",
        have=it.have,
        should=it.should,
        gone=it.should - it.have,
    )
