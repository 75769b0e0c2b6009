"""tests/upstream.md: each claim has a source, and each test, machine and part of gpu-check that it names
exists."""

import re
from pathlib import Path
from typing import NamedTuple

from support.paths import REPOSITORY, TESTS

MACHINES = TESTS / "data" / "machines"
PARTS = REPOSITORY / "scripts" / "gpu_check" / "plan.py"
NO_TEST = "nothing: only hardware can tell"


class Row(NamedTuple):
    """A row of a table: `held_by` is its last cell; `source` is empty where the table has two columns."""

    claim: str
    source: str
    held_by: str


def rows(text: str) -> list[Row]:
    found = []
    for line in text.splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and not set(line) <= set("|- ") and cells[-1] not in ("held by", "what would answer it"):
            found.append(Row(cells[0], cells[1] if len(cells) == 3 else "", cells[-1]))
    return found


def existing_tests() -> dict[str, set[str]]:
    """The tests of each file of tests, by its path in tests/."""

    def tests(path: Path) -> set[str]:
        return set(re.findall(r"def (test_\w+)\(", path.read_text()))

    return {str(path.relative_to(TESTS)): tests(path) for path in TESTS.rglob("test_*.py")}


def wrong(held_by: str, existing: dict[str, set[str]]) -> list[str]:
    """What a cell names that does not exist. A test that follows a file's name is one of that file."""
    found: list[str] = []
    tests = set().union(*existing.values())
    for word in re.findall(r"[\w/]*test_\w+\.py|`test_\w+`|\.\.\.", held_by):
        name = word.strip("`")
        if name.endswith(".py"):
            files = [path for path in existing if f"/{path}".endswith(f"/{name}")]
            found += [] if len(files) == 1 else [f"{name}: {len(files)} files"]
            tests = set().union(*(existing[path] for path in files))
        elif name != "..." and name not in tests:
            found.append(name)
    if "machine" in held_by:
        names = re.findall(r"`(\w+)`", held_by)
        found += [name for name in names if not name.startswith("test_") and not (MACHINES / name).is_dir()]
    return found


def names_something(held_by: str) -> bool:
    return held_by == NO_TEST or bool(re.search(r"test_\w+|machines? `|the same (test|job)", held_by))


EXISTING = existing_tests()
ROWS = rows((TESTS / "upstream.md").read_text())
CLAIMS = [row for row in ROWS if row.source]
QUESTIONS = [row for row in ROWS if not row.source]


def test_each_claim_has_a_source_and_a_test_that_exists() -> None:
    assert len(CLAIMS) > 50
    assert not [row.claim for row in CLAIMS if not names_something(row.held_by)]
    assert not {row.claim: names for row in CLAIMS if (names := wrong(row.held_by, EXISTING))}


def test_each_question_has_a_command_that_exists() -> None:
    parts = set(re.findall(r'Part\("([\w-]+)"', PARTS.read_text()))
    assert len(QUESTIONS) > 5 and len(parts) > 8
    for row in QUESTIONS:
        assert "`" in row.held_by, row.claim
        named = re.search(r"gpu-check`, parts? ([\w-]+)(?: (?:and|to) ([\w-]+))?", row.held_by)
        named_parts = [*(named.groups() if named else ()), *re.findall(r"--part ([\w-]+)", row.held_by)]
        assert named_parts or "gpu-check" not in row.held_by, row.claim
        assert {part for part in named_parts if part} <= parts, row.claim
