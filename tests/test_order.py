"""The marks that say in which order tests run, and which of them one process runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import TESTS

FOLDER_OF_CLUSTER = """
import pytest

def pytest_itemcollected(item):
    item.add_marker(pytest.mark.together("cluster"))
"""
TAKEN = {"test_4_apart.py::test_a[0]": 90.0, "test_5_by_parameter.py::test_b": 75.0, "cluster/test_2.py::test_c": 60.0}
FILES = {
    "durations.json": json.dumps(TAKEN),
    "conftest.py": """
import json, os, pytest
from pathlib import Path
from support import durations
pytest_plugins = ("support.order",)
durations.FILE = Path(__file__).parent / "durations.json"

@pytest.fixture(autouse=True)
def _noted(request, tmp_path_factory):
    yield
    with open(Path(__file__).parent / "noted.jsonl", "a") as file:
        file.write(json.dumps([request.node.nodeid, os.environ.get("PYTEST_XDIST_WORKER")]) + "\\n")
""",
    "cluster/conftest.py": FOLDER_OF_CLUSTER,
    "cluster/test_1.py": "def test_a(): pass\ndef test_b(): pass\n",
    "cluster/test_2.py": "def test_c(): pass\n",
    "test_1_plain.py": "def test_a(): pass\ndef test_b(): pass\n",
    "test_2_torch.py": "import pytest\npytestmark = pytest.mark.torch\ndef test_a(): pass\n",
    "test_3_without_forks.py": "import pytest\npytestmark = pytest.mark.without_forks\ndef test_a(): pass\n",
    "test_4_apart.py": """
import pytest
pytestmark = pytest.mark.apart

@pytest.mark.parametrize("number", range(3))
def test_a(number): pass
""",
    "test_5_by_parameter.py": """
import pytest
pytestmark = pytest.mark.apart_by_parameter

@pytest.mark.parametrize("case", ["one", "two"])
@pytest.mark.parametrize("job", ["red", "blue"])
def test_a(job, case): pass

def test_b(): pass
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A suite of its own, with this one's marks."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *words: str) -> list[tuple[str, str | None]]:
    """Each test's id, in the order of their ends, and the process that ran it."""
    command = [sys.executable, "-m", "pytest", "-q", *words, "."]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = str(TESTS)
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [tuple(json.loads(line)) for line in (project / "noted.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_what_takes_longest_comes_first_and_what_may_run_behind_torch_last(project: Path) -> None:
    files = [test.partition("::")[0] for test, _ in run(project, "-p", "no:xdist")]
    assert list(dict.fromkeys(files)) == [
        *("test_4_apart.py", "test_5_by_parameter.py", "cluster/test_1.py", "cluster/test_2.py"),
        *("test_1_plain.py", "test_2_torch.py", "test_3_without_forks.py"),
    ]


@pytest.mark.slow
def test_a_group_stays_in_one_process(project: Path) -> None:
    pytest.importorskip("xdist")
    ran = run(project, "-n", "2")
    assert len(ran) == 15 and {worker for _, worker in ran} == {"gw0", "gw1"}
    for group in (
        "cluster/",
        "test_1_plain.py",
        "test_5_by_parameter.py::test_a[red-",
        "test_5_by_parameter.py::test_b",
    ):
        assert len({worker for test, worker in ran if test.startswith(group)}) == 1, group


@pytest.mark.slow
def test_groups_follow_the_marks(project: Path) -> None:
    """As the processes of a run tell them."""
    listing = "import json\nfrom support.order import group_of\ndef pytest_collection_finish(session):\n"
    listing += "    open('groups', 'w').write(json.dumps({it.nodeid: group_of(it) for it in session.items}))\n"
    (project / "listing.py").write_text(listing)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "listing", "--collect-only", "-p", "no:xdist", "."]
    environ = {**os.environ, "PYTHONPATH": f"{TESTS}:{project}"}
    subprocess.run(command, cwd=project, env=environ, capture_output=True, timeout=300, check=True)
    groups = json.loads((project / "groups").read_text())
    assert {groups[test] for test in groups if test.startswith("cluster/")} == {"cluster"}
    assert {groups[test] for test in groups if test.startswith("test_1_")} == {"test_1_plain.py"}
    assert len({groups[test] for test in groups if test.startswith("test_4_")}) == 3
    assert {groups[test] for test in groups if test.startswith("test_5_")} == {
        f"test_5_by_parameter.py::{parameter}" for parameter in ("red", "blue", "")
    }
