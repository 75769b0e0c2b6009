"""What the benches share: figures, comparisons, verdicts, and words that are refused."""

import argparse
import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from common.figures import put_into
from common.refused import numbers
from common.smallest import BENCH, Ended
from laggard_bench.cases import make_case
from support.paths import REPOSITORY

from laggard.locate.verdict import locate
from laggard.recording.reader import read_recording

MARKS = ("ablation", "drains", "false alarms", "real runs", "results")
"""Those of docs/development/benchmark-tables.md."""


@pytest.mark.parametrize("name", MARKS)
def test_a_table_is_put_between_the_marks_of_its_name(name: str) -> None:
    text = (REPOSITORY / "docs" / "development" / "benchmark-tables.md").read_text()
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, after = text.partition(begin)[0], text.partition(end)[2]
    assert put_into(text, name, "new\n") == f"{before}{begin}\n\nnew\n\n{end}{after}"


def test_a_page_without_the_marks_is_left_alone() -> None:
    for page in ("", "<!-- noise -->", "<!-- end of noise -->"):
        with pytest.raises(ValueError, match="the page has no <!-- noise --> and <!-- end of noise -->"):
            put_into(page, "noise", "new")


BEFORE = (REPOSITORY / "docs" / "compared.md").read_text()
VERSIONS = (REPOSITORY / "docs" / "development" / "compared-versions.md").read_text()
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


def test_a_way_that_is_slow_too_and_costs_little_speaks_for_no_adapter(tmp_path: Path) -> None:
    """The adapter of rank 12 carries pairs of a pipeline, experts' exchange, and a gradient of a few bytes."""
    make_case(6, "0332-port", tmp_path)
    (culprit,) = locate(read_recording([tmp_path / "0332" / "recording"]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_link", (12,))


def test_a_switch_between_two_stages_of_a_pipeline_is_named_by_the_machines_behind_it(tmp_path: Path) -> None:
    """The round trips between the last two of four stages take 87 times as long as those between others."""
    make_case(10, "0119-leaf", tmp_path)
    (culprit,) = locate(read_recording([tmp_path / "0119" / "recording"]).timings).culprits
    assert culprit.nodes == ("gpu0251", "gpu0252", "gpu0253", "gpu0254")


TESTS = BENCH / "tests"

UNKNOWN = (
    (("all", "NAME"), "no benchmark 'NAME'; there are hook, "),
    (("ablate", "--rule", "NAME"), "no rule 'NAME'; --list shows them"),
    (("diagnose_quality", "NAME"), "no case 'NAME'; there are "),
    (("locate_quality", "--row", "NAME"), "no row 'NAME'; there are GPU, "),
    (("locate_quality", "--tool", "nowhere:locate"), "--tool nowhere:locate: No module named 'nowhere'"),
    (("page", "--ranks", "64"), "--ranks: give 1024 or more: "),
    (("real_quality", "--job", "ddp", "--fault", "pair"), "there is no run of ddp with pair"),
)


@pytest.mark.parametrize(("words", "line"), UNKNOWN, ids=lambda value: " ".join(value) if len(value) < 6 else "")
def test_what_is_not_there_is_refused_in_a_line(bench: Callable[..., Ended], words: tuple[str, ...], line: str) -> None:
    refused = bench(*words, status=(os.EX_USAGE,))
    (said,) = refused.errors.splitlines()
    assert said.startswith(f"{words[0]}: {line}") and not refused.out


@pytest.mark.parametrize("program", ["soak", "page", "prolog"])
def test_a_program_that_is_missing_is_named_in_a_line(
    bench: Callable[..., Ended], tmp_path: Path, program: str
) -> None:
    refused = bench(program, status=(os.EX_USAGE,), environ={"PATH": str(tmp_path)})
    (said,) = refused.errors.splitlines()
    assert said.startswith(f"{program}: needs ") and not refused.out


def test_numbers_are_as_many_as_are_asked_for() -> None:
    assert numbers(3)("1,20,0") == (1, 20, 0)
    for wrong in ("1,2", "1,2,3,4", "1,x,3", "", "1,,3"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not 3 numbers"):
            numbers(3)(wrong)


def _run(path: Path) -> Iterator[Any]:
    """The first words of all calls of `bench` in a file of tests."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bench" and node.args:
            yield ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else None


def test_every_benchmark_has_a_smallest_run() -> None:
    there = {path.stem for path in BENCH.glob("*.py")}
    run = {name for path in TESTS.glob("test_smallest*.py") for name in _run(path)}
    assert there - run == set(), "give each of these a smallest run in bench/tests"
    assert {name for name in run if "/" not in name} - there == set()
