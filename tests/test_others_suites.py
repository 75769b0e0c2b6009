"""scripts/others_suites.py finds what differs with the hooks, and nothing else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import REPOSITORY

TESTS = """
import pytest, sys

def test_passes(): pass
@pytest.mark.parametrize("case", [1, 2])
def test_differs(case): assert "laggard" not in sys.modules
"""


@pytest.fixture(scope="module")
def others_suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("others_suites", REPOSITORY / "scripts" / "others_suites.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["others_suites"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_difference_is_found(others_suites: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "test_it.py").write_text(TESTS)
    place = others_suites.Workplace(tmp_path, sys.executable)
    suite = others_suites.pytest_suite("title", "abc", place, tmp_path / "suite", ["test_it.py", "test_gone.py"], 9)
    assert len(suite.names) == 2, "one case of each function"
    row = others_suites.compare(suite, place)
    assert (row.sampled, row.without, row.with_hooks) == (2, 2, 1)
    assert row.differences == ("test_it.py::test_differs[1]",)
    assert "| 2 | 2 | 1 | test_it.py::test_differs[1] | 0 | 0 |" in others_suites.table([row])


def test_the_sample_is_spread_over_each_file(others_suites: ModuleType) -> None:
    names = [f"{file}::T::test_{number}[{case}]" for file in "ab" for number in range(9) for case in "xy"]
    chosen = others_suites.sample(names, 3)
    assert chosen == [f"{file}::T::test_{number}[x]" for file in "ab" for number in (0, 3, 6)]
    assert others_suites.sample(names, 99) == names[::2]
