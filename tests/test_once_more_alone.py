"""What ends `make test`: a test that fails alone fails the run, and one that only fails beside others does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "once_more_alone.py"
TESTS = """
from pathlib import Path
import pytest

def test_short_of_time():
    assert Path("second_run").exists()

def test_broken():
    assert not Path("defect").exists()

@pytest.mark.parametrize("number", range(6))
def test_many(number):
    assert not Path("many").exists()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=project, capture_output=True, text=True, timeout=300)


def both_runs(project: Path) -> subprocess.CompletedProcess[str]:
    first = run(project, "-m", "pytest", "-q", "test_it.py")
    (project / "second_run").touch()
    return run(project, str(SCRIPT), str(first.returncode), "test_it.py")


def test_what_passes_alone_is_listed_and_fails_no_run(project: Path) -> None:
    done = both_runs(project)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(
        "Passed alone, after they had failed beside other tests:\n    test_it.py::test_short_of_time\n"
    )


def test_what_fails_alone_fails_the_run(project: Path) -> None:
    (project / "defect").touch()
    done = both_runs(project)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout


def test_many_failures_are_not_tried_again(project: Path) -> None:
    (project / "many").touch()
    done = both_runs(project)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("status", ["2", "3", "4", "5"])
def test_other_endings_stay_as_they_are(project: Path, status: str) -> None:
    assert run(project, str(SCRIPT), status, "test_it.py").returncode == int(status)
