"""docs/compared.md has versions and dates in one table, a row for each tool."""

from __future__ import annotations

import re

from support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "compared.md").read_text()
BEFORE, _, VERSIONS = PAGE.partition("## Versions")
A_VERSION = re.compile(r"\b\d+\.\d+\.\d+|\bv?\d+\.\d{1,2}\b(?! %)|\b20\d\d-\d\d\b|\b(?=[0-9a-f]*\d)[0-9a-f]{7}\b")


def tool_of(cell: str) -> str:
    """The first word of a tool's name in a table's cell, which is a link or is none."""
    return cell.replace("[", " ").replace("]", " ").replace("\u0027s", " ").replace(",", " ").split()[0]


def rows(part: str) -> list[list[str]]:
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| tool |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_versions_and_dates_stand_in_one_table() -> None:
    assert not A_VERSION.findall(BEFORE)
    assert len(A_VERSION.findall(VERSIONS)) > 20


def test_every_tool_has_its_version() -> None:
    known = {tool_of(row[0]) for row in rows(VERSIONS)}
    told = {tool_of(row[0]) for row in rows(BEFORE.partition("## The tools")[2])}
    assert told and told <= known, told - known
