"""scripts/others_suites.py finds what differs with the hooks, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
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

TRAINS = """
import torch, torch.distributed as dist

def test_trains(tmp_path):
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
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


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_ranks_that_were_hooked_are_counted(others_suites: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TRAINS)
    place = others_suites.Workplace(tmp_path, sys.executable)
    row = others_suites.compare(others_suites.pytest_suite("title", "", place, tmp_path, ["test_it.py"], 9), place)
    assert (row.without, row.with_hooks, row.ranks, row.errors) == (1, 1, 1, 0), "one rank, in the run with the hooks"


def test_scripts_of_an_installed_package(others_suites: ModuleType, tmp_path: Path) -> None:
    place = others_suites.Workplace(tmp_path, sys.executable)
    scripts = {"ends with 0": ("this",), "does not": ("json.tool", "/no/such/file")}
    row = others_suites.compare(others_suites.script_suite("title", "pytest", place, scripts), place)
    assert (row.sampled, row.without, row.with_hooks, row.differences) == (2, 1, 1, ())
    missing = others_suites.script_suite("title", "no_such_package", place, scripts)
    assert missing.names == () and missing.source == "no_such_package, which is not installed"


def test_sources_of_two_bare_repositories_and_of_a_working_tree(others_suites: ModuleType, tmp_path: Path) -> None:
    tree, bare = tmp_path / "tree", tmp_path / "bare"
    for name in ("wanted", "too", "other"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text(name)

    def git(*words: object) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@x.invalid")
        subprocess.run(["git", "-C", tree, *who, *map(str, words)], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "files")
    git("clone", "-q", "--bare", tree, bare)
    for place in (tmp_path / "first", tmp_path / "second"):
        sources = others_suites.fetch(str(bare), None, place, "wanted", "too")
        assert sorted(path.name for path in sources.folder.iterdir()) == ["too", "wanted"]
        assert sources.revision == others_suites.fetch(str(tree), None, place, "wanted", "too").revision
    assert others_suites.fetch(str(tree), None, tmp_path / "third", "wanted").folder == tree


def test_the_sample_is_spread_over_each_file(others_suites: ModuleType) -> None:
    names = [f"{file}::T::test_{number}[{case}]" for file in "ab" for number in range(9) for case in "xy"]
    chosen = others_suites.sample(names, 3)
    assert chosen == [f"{file}::T::test_{number}[x]" for file in "ab" for number in (0, 3, 6)]
    assert others_suites.sample(names, 99) == names[::2]
