"""What benchmarks refuse in one line, before they start anything; and that each has a smallest run."""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from common.refused import numbers
from common.smallest import BENCH, Ended

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
