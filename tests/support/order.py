"""Which tests run, in which order, and which of them one process runs.

The order comes of what tests took (support/durations.py); the rest of marks, which pyproject.toml lists. A mark stands
in the test's file, or in its folder's conftest.py for the whole folder, and moves with it."""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Container, Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.durations import seconds
from support.later import IMPORTED_TORCH

GROUPS = "groups_file"  # of what a process of the run is given: where it writes each test's group

CHANGED_SECONDS = 300.0
"""So many core-seconds of slow tests that a change can break run with each change: a quarter of ten minutes of two
cores."""
UNKNOWN_SECONDS = 0.5
"""What a slow test is taken to last that tests/durations.json does not know: it is short, or new."""
FOLDER = pytest.StashKey[Path]()
BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "the test files that a change can break, one a line (scripts/changed_tests.py): of their slow tests, as many"
    parser.addoption("--changed", type=Path, metavar="FILE", help=f"{text} as take {CHANGED_SECONDS} s are `changed`")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not want
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests: the groups that take longest come first, so that no core is idle at the end. Tests that import
    torch into their own process come late (see support/later.py): behind them only those `without_forks`, which fill
    the other cores meanwhile."""
    config.stash[IMPORTED_TORCH] = "torch" in sys.modules
    if file := config.getoption("--changed"):
        _mark_changed(items, set(file.read_text().split("\n")))
    taken: Counter[str] = Counter()
    for item in items:
        item.user_properties.append(("tier", _tier_of(item)))  # JUnit's report has it
        taken[group_of(item)] += seconds().get(item.nodeid, 0.0)
    items.sort(key=lambda item: (_turn(item), -taken[group_of(item)], _file_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    if call.when == "teardown":
        item.user_properties.append(("cpu", f"{_cpu_seconds() - item.stash[BEGAN]:.2f}"))
    return (yield)


def _cpu_seconds() -> float:
    """Of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def _mark_changed(items: Iterable[pytest.Item], files: Container[str]) -> None:
    """The shortest of the slow tests in these files, but none that judges a wall clock; `tests` stands for all."""
    slow = [item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("wall_clock")]
    slow = [item for item in slow if "tests" in files or _file_of(item) in files]
    left = CHANGED_SECONDS
    for item in sorted(slow, key=lambda item: (seconds().get(item.nodeid, UNKNOWN_SECONDS), item.nodeid)):
        left -= seconds().get(item.nodeid, UNKNOWN_SECONDS)
        if left >= 0.0:
            item.add_marker("changed")


def _tier_of(item: pytest.Item) -> str:
    return next((mark for mark in ("spine", "changed", "slow") if item.get_closest_marker(mark)), "pure")


def _turn(item: pytest.Item) -> int:
    turns = ("torch", 1), ("without_forks", 2)
    return next((turn for mark, turn in turns if item.get_closest_marker(mark) is not None), 0)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def group_of(item: pytest.Item) -> str:
    """The group of a test: one process runs a group's tests, one after the other. Where no mark says otherwise it is
    the test's file, since its tests may share what a module makes once."""
    path, _, test = item.nodeid.partition("::")
    if together := item.get_closest_marker("together"):
        return str(_argument(together))
    if item.get_closest_marker("apart") is not None:
        return item.nodeid
    if item.get_closest_marker("apart_by_parameter") is not None:
        return f"{path}::{test.partition('[')[2].rstrip(']').partition('-')[0]}"
    return path


def _argument(mark: pytest.Mark) -> Any:
    if len(mark.args) != 1:
        raise pytest.UsageError(f"the mark {mark.name} takes one argument: pyproject.toml says which")
    return mark.args[0]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist says that this process has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """A process of a run on several cores tells the first one its tests' groups, which pytest-xdist doesn't carry: it
    would by the tests' names, which it can no longer write since pytest 9.2."""
    if file := getattr(session.config, "workerinput", {}).get(GROUPS):
        part = Path(f"{file}.{os.getpid()}")
        part.write_text(json.dumps({item.nodeid: group_of(item) for item in session.items}))
        part.replace(file)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, for each process that it starts
def pytest_configure_node(node: Any) -> None:
    node.workerinput[GROUPS] = str(_folder(node.config) / "groups.json")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out the tests to a process for each core, a group at a time, in the order of the list."""
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def groups() -> dict[str, str]:
        read: dict[str, str] = json.loads((_folder(config) / "groups.json").read_text())
        return read

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return groups()[nodeid]

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def _folder(config: pytest.Config) -> Path:
    if FOLDER not in config.stash:
        config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="laggard-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(config.stash[FOLDER], ignore_errors=True))
    return config.stash[FOLDER]
