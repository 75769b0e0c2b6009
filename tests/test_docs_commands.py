"""Every command line of the docs is run by a test, or taken by laggard's own parser, or on a list that was reviewed."""

import argparse
import functools
import json
import re
from pathlib import Path

import pytest
from support.docs_commands import NAMES, Line, command_lines, laggard_words, simple_commands
from support.paths import REPOSITORY, TESTS

from laggard.cli import whole_parser
from laggard.kit.errors import UsageError

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]

LISTS = TESTS / "data" / "pages"
RUN: dict[str, str] = json.loads((LISTS / "run.json").read_text())
"""The pages whose fenced commands a test runs (support/transcript.py), and the test."""

REVIEWED: dict[str, str] = json.loads((LISTS / "commands.json").read_text())
"""What the docs show and no test types: the words that such a command begins with, and the test that covers it, or what
it needs. The longest beginning counts."""

PROGRAMS = frozenset(json.loads((LISTS / "programs.json").read_text()))
"""Others' programs that the findings' pages name: they need the hardware that is at fault."""

PLACE = re.compile(r"\b(?:deploy/(?!laggard-)|docs/|scripts/|bench/|tests/)[\w./*{},-]+")


def _lines() -> list[Line]:
    return [line for page in PAGES for line in command_lines(page)]


def _where(line: Line) -> str:
    return f"{line.page.relative_to(REPOSITORY)}:{line.number}"


LINES = [line for line in _lines() if not (line.block == "fenced" and str(line.page.relative_to(REPOSITORY)) in RUN)]


@functools.cache
def _parser() -> argparse.ArgumentParser:
    return whole_parser()


@pytest.mark.parametrize("line", LINES, ids=_where)
def test_a_command_that_no_test_runs_is_one_that_would_run(line: Line) -> None:
    assert line.block == "indented", f"{_where(line)}: a block `sh` is run by a test; name it in RUN: {line.text}"
    for words in simple_commands(line.text):
        own = laggard_words(words)
        if own is not None:
            _expect_taken(own, line)
        if own is None or words[0].rpartition("/")[2] != "laggard":
            _expect_reviewed(words, line)
    _expect_files(line)


@pytest.mark.parametrize(("page", "test"), RUN.items(), ids=list(RUN))
def test_a_page_is_run_by_the_test_that_is_named(page: str, test: str) -> None:
    assert command_lines(REPOSITORY / page), f"{page} has no commands"
    text = _expect_test(test, page)
    assert Path(page).name in text, f"{test} does not name {page}"


@pytest.mark.parametrize("how", sorted({how for how in REVIEWED.values() if "::" in how}))
def test_a_test_that_the_list_names_exists(how: str) -> None:
    _expect_test(how, "the list")


def test_the_list_has_what_the_docs_have() -> None:
    used = {_reviewed(words) for line in LINES for words in simple_commands(line.text)}
    assert not REVIEWED.keys() - used, f"no page has these any more: {sorted(REVIEWED.keys() - used)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_sentence_calls_laggard_with_exists(page: Path) -> None:
    """`laggard COMMAND --flag` in running text: the command and the flags, whatever stands for their values."""
    outside = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for text in re.findall(r"`((?:[\w ]+ )?laggard [^`]+)`", outside):
        words = laggard_words(text.split())
        if words is None or words[0] == "run":
            continue
        flags = {flag.partition("=")[0] for flag in re.findall(r"(?<![\w-])--?[a-z][\w.-]*", " ".join(words[1:]))}
        unknown = flags - _flags(words[0])
        assert not unknown, f"{page.name}: `{text}`: laggard {words[0]} has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_sentence_makes_or_benches_exists(page: Path) -> None:
    """`make TARGET` and `python SCRIPT --flag` in running text."""
    outside = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for number, text in enumerate(re.findall(r"`((?:make|python) [^`]+)`", outside)):
        words = re.sub(r"\s+", " ", text).split()
        if words[0] == "make" or re.match(r"(bench|scripts)/.*\.py$", words[1]):
            _expect_script(words, Line(page, number, text, "inline"))


def _expect_taken(words: list[str], line: Line) -> None:
    try:
        _, rest = _parser().parse_known_args(words)
    except UsageError as error:
        pytest.fail(f"{line.page.name}:{line.number}: laggard does not take it: {error}", pytrace=False)
    if rest:
        pytest.fail(f"{line.page.name}:{line.number}: laggard does not know {rest[0]}: {line.text}", pytrace=False)


def _expect_reviewed(words: list[str], line: Line) -> None:
    if line.page.parent.name == "findings":
        assert words[0] in PROGRAMS, f"{_where(line)}: tests/data/pages/programs.json does not have {words[0]}"
        return
    if _reviewed(words) is None:
        pytest.fail(
            f"{line.page.name}:{line.number}: no test runs `{' '.join(words)}`: put it into a block `sh` of a page "
            "that a test runs, or into REVIEWED with the test that covers it, or with what it needs",
            pytrace=False,
        )
    _expect_script(words, line)


def _expect_script(words: list[str], line: Line) -> None:
    """What make or python is given: the targets, or the script and its flags."""
    if words[0] == "make":
        for target in re.findall(r"(?:^make| && make) (\w[\w-]*)", " ".join(words)):
            makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{line.page.name}: no target {target}"
    if words[0] == "python":
        script = REPOSITORY / words[1]
        assert script.is_file(), f"{line.page.name}:{line.number}: {words[1]} is not there"
        for flag in (word for word in words[2:] if word.startswith("--")):
            assert f'"{flag}"' in script.read_text(), f"{line.page.name}:{line.number}: {words[1]} has no {flag}"


def _reviewed(words: list[str]) -> str | None:
    text = " ".join(words)
    return max((start for start in REVIEWED if f"{text} ".startswith(f"{start} ")), key=len, default=None)


def _expect_files(line: Line) -> None:
    """What a line names of the repository is there; braces and stars stand for several."""
    for place in PLACE.findall(line.text):
        choices = re.search(r"\{(.*?)\}", place)
        for part in choices[1].split(",") if choices else [""]:
            name = place.replace(choices[0], part) if choices else place
            assert any(REPOSITORY.glob(name.rstrip("/."))), f"{_where(line)}: there is no {name}"


def _expect_test(test: str, who: str) -> str:
    file, _, name = test.partition("::")
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{who} names {test}, which is not there"
    return text


def _flags(command: str) -> set[str]:
    parser = _parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    assert command in NAMES
    child = commands.choices[command]
    return {flag for action in child._actions for flag in action.option_strings}
