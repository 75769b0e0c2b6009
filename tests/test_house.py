"""The house: no circle of files, every folder in the wheel, maps that lead where they say, the workflow of CI, and for
each slow test a quick one.

The floors of the folders are import-linter's, in pyproject.toml.
"""

import ast
import graphlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest
import yaml
from support.durations import least_seconds
from support.later import IMPORTED_TORCH
from support.paths import REPOSITORY, TESTS

PACKAGE = REPOSITORY / "src" / "laggard"
SOURCES = ("src", "agent", "collector", "deploy", "docs", "probes", "trainer_hooks")
ROOMS = ("agent", "collector", "probes", "trainer_hooks", "src/laggard")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle of imports, in the order in which each imports the next; empty: there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_two_files_import_each_other_in_a_circle() -> None:
    """Imports for type checking and inside functions count: a circle that only they close is one for the reader."""
    imports = grimp.build_graph("laggard", cache_dir=None)
    found = circle({name: imports.find_modules_directly_imported_by(name) for name in imports.modules})
    assert not found, " -> ".join(found)


CLIENT = re.compile(
    r"^\s*(?:import|from) (httpx|h11|urllib\.request|http\.client|urllib3|requests|aiohttp)\b", re.MULTILINE
)
CLIENTS = {
    # The second reads requests, as uvicorn.
    "h11": ("collector/scrape/fetch.py", "collector/web/connections.py"),
    "httpx": (
        *("collector/prometheus/", "collector/locate_command/", "src/laggard/kit/collector_client.py"),
        "src/laggard/kubernetes/",
    ),
    "requests": ("src/laggard/dashboards.py",),
}
"""Who uses which HTTP client beside laggard's own: docs/development/decisions/005-own-http.md."""


def test_there_is_no_fifth_http_client() -> None:
    used = {
        (name, str(path.relative_to(REPOSITORY)))
        for room in ROOMS
        for path in (REPOSITORY / room).rglob("*.py")
        for name in CLIENT.findall(path.read_text(encoding="utf-8"))
    }
    astray = sorted((name, path) for name, path in used if not path.startswith(CLIENTS.get(name, ())))
    assert not astray, "docs/development/decisions/005-own-http.md says which client asks whom"
    assert {name for name, _ in used} == CLIENTS.keys()


def tree_of(package: Path) -> set[str]:
    """Every file below the package, through the links to the folders at the top."""
    found = set()
    for folder, names, files in os.walk(package, followlinks=True):
        names[:] = [name for name in names if name != "__pycache__"]
        found |= {os.path.relpath(os.path.join(folder, name), package.parent) for name in files}
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an installed wheel would fill. It is built from a copy: a build leaves things in its tree."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_has_every_file_of_the_tree(wheel: Path) -> None:
    """setuptools leaves out, without a word, a folder that has no __init__.py and data that nobody named."""
    assert tree_of(wheel / "laggard") == tree_of(PACKAGE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_installed_wheel_runs_and_has_the_pages(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "laggard", "findings", "explain", "DISK_FULL"]
    environ = {"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("# DISK_FULL\n")


def test_the_map_leads_to_files_that_are_there() -> None:
    """CONTRIBUTING.md names where things are and where to put them."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?!out/)[a-z]\w*/[\w./]+|[\w/]+\.(?:py|md|toml))`", text))
    missing = sorted(path for path in paths if not any(REPOSITORY.glob(path.rstrip("/"))))
    assert not missing, f"CONTRIBUTING.md names {', '.join(missing)}"


def test_the_lists_of_what_to_read_are_short_and_lead_to_files() -> None:
    """CONTRIBUTING.md, five changes: at most ten files each, in an order, each told in four to ten words."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    text = text.partition("## What to read for a change\n")[2].partition("\n## ")[0]
    lists = re.findall(r"^\*\*(.+?)\*\*.*\n\n((?:\d+\. .*\n)+)", text, re.MULTILINE)
    assert len(lists) == 5, [name for name, _ in lists]
    for name, lines in lists:
        rows = re.findall(r"^(\d+)\. `([^`]+)`: (.*)$", lines, re.MULTILINE)
        assert [int(number) for number, _, _ in rows] == list(range(1, lines.count("\n") + 1)), name
        assert len(rows) <= 10, f"{name}: {len(rows)} files"
        assert not [path for _, path, _ in rows if not (REPOSITORY / path).is_file()], name
        assert not [words for _, _, words in rows if not 4 <= len(words.split()) <= 10], name


def test_the_tests_that_the_docs_name_are_there() -> None:
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]
    named = {(page.name, path) for page in pages for path in re.findall(r"`(tests/[\w/]+\.py)", page.read_text())}
    missing = sorted(f"{page}: {path}" for page, path in named if not (REPOSITORY / path).is_file())
    assert len(named) > 20 and not missing, missing


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_is_on_the_map(room: str) -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text().replace("\n", "\n ")
    folders = {path.parent.relative_to(REPOSITORY / room) for path in (REPOSITORY / room).rglob("__init__.py")}
    missing = [
        f"{room}/{folder}/"
        for folder in sorted(folders - {Path(".")})
        if f" {folder}/ " not in text and f" */{folder.name}/ " not in text
    ]
    assert not missing, f"CONTRIBUTING.md has no line for {', '.join(missing)}"


def test_collecting_the_tests_imports_no_torch(pytestconfig: pytest.Config) -> None:
    """It would make each of the suite's forks twenty times as slow; `Later` of support/later.py keeps it out."""
    assert not pytestconfig.stash[IMPORTED_TORCH], "a test module, or what it imports, imports torch"


MAX_SECONDS = 5.0


def test_what_runs_with_each_change_is_short(request: pytest.FixtureRequest) -> None:
    """Of the tests that this run has collected. What takes longer is marked `slow`, or is one of the few of `spine`."""
    taken = least_seconds()
    own = [item for item in request.session.items if not any(map(item.get_closest_marker, ("slow", "spine")))]
    long = [f"{item.nodeid}: {taken[item.nodeid]:.1f} s" for item in own if taken.get(item.nodeid, 0.0) > MAX_SECONDS]
    assert not long, f"make them shorter than {MAX_SECONDS} s, or mark them slow (tests/README.md): {', '.join(long)}"


def test_what_judges_a_wall_clock_is_slow_and_says_when_it_failed(request: pytest.FixtureRequest) -> None:
    judging = [(item, mark) for item in request.session.items if (mark := item.get_closest_marker("wall_clock"))]
    wrong = [item.nodeid for item, _ in judging if not item.get_closest_marker("slow")]
    wrong += [item.nodeid for item, mark in judging if not re.match(r"20\d\d-\d\d-\d\d.*: .", *mark.args)]
    assert not wrong, f"mark them slow, with a history such as '2026-11-25, at load 8: what was seen': {wrong}"


def test_the_workflow_runs_what_a_developer_runs_with_pinned_actions_and_no_more_rights() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert "permissions" not in job and job["timeout-minutes"] <= 90
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
    used = re.findall(r"uses: (.*)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used), used


class Speeds(NamedTuple):
    """The names of a file's tests that are slow, and of those that are neither that nor of the spine. A test of which
    some parameters are slow is both."""

    slow: frozenset[str]
    quick: frozenset[str]


@cache
def speeds(path: Path) -> Speeds:
    text = path.read_text()
    if _is_marked(path.parent):
        return Speeds(frozenset(_TEST.findall(text)), frozenset())
    return _speeds_of(text) if _LIVE.search(text) else Speeds(frozenset(), frozenset(_TEST.findall(text)))


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_LIVE = re.compile(r"\bmark\.(?:slow|spine)\b")
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@cache
def _is_marked(folder: Path) -> bool:
    """Whether a conftest.py marks all tests of the folder."""
    conftest = folder / "conftest.py"
    marks = conftest.is_file() and _LIVE.search(conftest.read_text())
    return bool(marks) or (folder != TESTS and _is_marked(folder.parent))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _speeds_of(text: str) -> Speeds:
    body = ast.parse(text).body
    tests = {node.name for node in body if isinstance(node, FUNCTIONS) and node.name.startswith("test_")}
    slow, some_slow = _marked(body, tests, "slow")
    spine, _ = _marked(body, tests, "spine")
    return Speeds(frozenset(slow | some_slow), frozenset(tests - slow - spine))


def _marked(body: Sequence[ast.stmt], tests: Collection[str], mark: str) -> tuple[set[str], set[str]]:
    """The names of the `tests` that have the mark, and of those of which some parameters have it."""
    named: set[str] = set()  # names that stand for the mark, or for parameters with it
    for node in body:
        if isinstance(node, ast.Assign) and _holds(node.value, mark, named):
            named |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    whole, some = set(tests) if "pytestmark" in named else set(), set()
    for node in body:
        if isinstance(node, FUNCTIONS) and node.name in tests:
            for marks in (it for it in node.decorator_list if _holds(it, mark, named)):
                (some if isinstance(marks, ast.Call) else whole).add(node.name)
    return whole, some


def _holds(node: ast.expr, mark: str, named: Collection[str]) -> bool:
    """Whether the mark, or a name that stands for it, is in the expression."""
    return any(
        (isinstance(it, ast.Name) and it.id in named)
        or (isinstance(it, ast.Attribute) and it.attr == mark and getattr(it.value, "attr", "") == "mark")
        for it in ast.walk(node)
    )


def test_each_file_with_slow_tests_has_quick_ones_of_the_same() -> None:
    """tests/README.md has a row for each of them and for no other; what it names is there, and quick."""
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", (TESTS / "README.md").read_text(), re.MULTILINE)
    assert [file for file, _, _ in rows] == sorted(
        str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if speeds(path).slow
    )
    for file, only, named in rows:
        tests = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", named)
        assert (named == "none" and not tests) or (1 <= len(tests) <= 3 and named.count("`") == 2 * len(tests)), file
        assert len(only.split()) <= 12, file
        for path, test in tests:
            assert (TESTS / path).is_file(), f"{file}: there is no {path}"
            quick = speeds(TESTS / path).quick
            assert test in quick if test else quick, f"{file}: {path} has no such test, or a slow one"
