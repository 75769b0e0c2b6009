"""The docs as prose: sentences that can be read once, sizes of the sets, code blocks for whoever does something."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
MADE = {"benchmark-tables.md", "commands.md", "configuration.md", "constants.md", "draining.md", "engines.md"}
MADE |= {"formats.md", "metrics.md", "privileges.md"}
"""Pages that scripts and benchmarks write."""

FINDINGS = sorted(path for path in (DOCS / "findings").glob("*.md") if path.name != "README.md")
DEVELOPMENT = sorted(path for path in (DOCS / "development").rglob("*.md") if path.name not in MADE)
READERS = [
    *(REPOSITORY / name for name in ("README.md", "deploy/slurm/README.md")),
    *sorted(path for path in DOCS.rglob("*.md") if path.name not in MADE and path not in {*FINDINGS, *DEVELOPMENT}),
]
LONGEST, MEAN = 25, 15
"""Words of a sentence: what a reader whose second language is English reads once; guides to plain language say 25."""

LONG_IN_DEVELOPMENT, LONG_IN_DOCSTRINGS = 66, 600
"""How many longer sentences there are: lower these where you shorten some, and raise neither."""

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)")
WHERE = re.compile(
    r"\b[Ww]here (?:a|an|the|it|there|no|nothing|this|that|several|any)\b(?! (?:is|are|lies) (?:kept|read))"
)
PLACES = re.compile(
    r"\b(?:says?|tells?|sees?|shows?|knows?|from|to|of|is|and) where\b|[Ww]here (?:it|they) (?:stands?|lies?)"
)


def sentences(text: str) -> Iterator[str]:
    """Those of paragraphs and list items, with code as one word; not of heads, headings, tables, code and sources."""
    text = FENCE.sub("\n\n", HEAD.sub("", text)).partition("\n## Sources")[0]
    for block in BLOCK.split(text):
        if (
            block.strip()
            and not block.strip("\n").startswith("    ")
            and block.lstrip()[:1] not in ("|", "#", "!", ">")
        ):
            yield from sentences_of(block)


def sentences_of(block: str) -> Iterator[str]:
    plain = re.sub(r"^\s*(?:[-*]|\d+\.) +", "", block.strip("\n"))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`+[^`]*`+", "CODE", plain)).replace("**", "")
    yield from re.split(r"(?<=[.!?])\s+(?=\w|[\"(])|;\s", " ".join(plain.split()))


def words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_a_sentence_is_taken_apart_as_a_reader_does() -> None:
    text = "# Head\n\nOne `a b c` two. Three [four](x.md); five.\n\n- Six\n\n| no | row |\n\n    no code\n"
    assert [(each, words(each)) for each in sentences(text)] == [
        ("One CODE two.", 3), ("Three four", 2), ("five.", 1), ("Six", 1)]  # fmt: skip


@pytest.mark.parametrize("page", [*READERS, *FINDINGS], ids=_name)
def test_a_readers_sentences_are_short(page: Path) -> None:
    long = [each for each in sentences(read(page)) if words(each) > LONGEST]
    assert not long, f"{len(long)} sentences of more than {LONGEST} words: {long[0]}"


def test_readers_sentences_are_short_in_the_mean() -> None:
    assert statistics.mean(words(each) for page in [*READERS, *FINDINGS] for each in sentences(read(page))) <= MEAN


@pytest.mark.parametrize("page", [*READERS, *FINDINGS], ids=_name)
def test_a_condition_is_an_if(page: Path) -> None:
    found = [each for each in sentences(read(page)) if WHERE.search(PLACES.sub("", each))]
    assert not found, f"write `if` for a condition: {found[0]}"


def test_the_sets_have_their_size() -> None:
    readers, findings = (sum(words(HEAD.sub("", read(page))) for page in pages) for pages in (READERS, FINDINGS))
    development = sum(words(read(page)) for page in DEVELOPMENT)
    assert readers <= 30_000 and findings <= 22_000 and development <= 20_000, (readers, findings, development)


@pytest.mark.parametrize("page", FINDINGS, ids=_name)
def test_a_findings_page_is_read_in_a_minute(page: Path) -> None:
    assert words(HEAD.sub("", read(page))) <= 250


def test_whoever_does_something_finds_a_block_of_code() -> None:
    blocks = 0
    for page in READERS:
        text = read(page)
        blocks += len(FENCE.findall(text)) + len(re.findall(r"\n\n(?: {4}\S.*\n)+", FENCE.sub("", text)))
    told = sum(words(FENCE.sub("", read(page))) for page in READERS)
    assert 1000 * blocks / told >= 6, (blocks, told)


def test_development_and_docstrings_do_not_grow_longer_sentences() -> None:
    pages = sum(words(each) > LONGEST for page in DEVELOPMENT for each in sentences(read(page)))
    assert pages <= LONG_IN_DEVELOPMENT, f"{pages} long sentences in docs/development"
    told = sum(words(each) > LONGEST for text in _docstrings() for each in sentences(text))
    assert told <= LONG_IN_DOCSTRINGS, f"{told} long sentences in public docstrings"


def _docstrings() -> Iterator[str]:
    """Of what is public: modules, classes, functions and methods whose names have no underscore in front."""
    for room in ("src/laggard", "agent", "collector", "probes", "trainer_hooks"):
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            tree = ast.parse(read(path))
            for node in (tree, *ast.walk(tree)):
                public = not (getattr(node, "name", "") or "").startswith("_")
                if public and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""
