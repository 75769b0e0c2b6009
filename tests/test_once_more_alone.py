"""What ends `make test`: a test that fails alone fails the run, one that only fails beside others is kept, and one that
does so again and again is a defect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "once_more_alone.py"
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("case", ["a@b", "other"])
def test_short_of_time(case):
    assert case == "other" or Path("second_run").exists()

def test_broken():
    assert not Path("defect").exists()

@pytest.mark.parametrize("number", range(5))
def test_many(number):
    assert not Path("many").exists()
"""
SHORT_OF_TIME = "test_it.py::test_short_of_time[a@b]"


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
    return run(project, str(SCRIPT), str(first.returncode))


def kept(project: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((project / "out" / "second_try.json").read_text())
    return document


def test_what_passes_alone_is_kept_and_fails_no_run(project: Path) -> None:
    done = both_runs(project)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(f"Passed alone, after they had failed beside other tests:\n    {SHORT_OF_TIME}\n")
    document = kept(project)
    assert set(document) == {"date", "commit", "failed", "second_tries"} and document["failed"] == 1
    (tried,) = document["second_tries"]
    assert (tried["test"], tried["passed"]) == (SHORT_OF_TIME, True)
    assert tried["date"].endswith("+00:00") and len(tried["load_average"]) == 3 and tried["seconds"] > 0


def test_the_commit_is_kept(project: Path) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *words], cwd=project, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True).stdout.strip()
    both_runs(project)
    assert kept(project)["commit"] == head


def test_what_fails_alone_fails_the_run(project: Path) -> None:
    (project / "defect").touch()
    done = both_runs(project)
    assert done.returncode == 1
    assert {each["test"]: each["passed"] for each in kept(project)["second_tries"]} == {
        "test_it.py::test_broken": False,
        SHORT_OF_TIME: True,
    }


def test_more_than_five_failures_are_not_tried_again(project: Path) -> None:
    (project / "many").touch()
    done = both_runs(project)
    assert (done.returncode, done.stdout) == (1, "6 tests failed; up to 5 would have been run again, alone\n")
    assert (kept(project)["failed"], kept(project)["second_tries"]) == (6, [])


@pytest.mark.parametrize("status", ["0", "2", "3", "4", "5"])
def test_other_endings_stay_as_they_are(project: Path, status: str) -> None:
    """Also that of a run without a failure: what it keeps says that none was tried again."""
    assert run(project, str(SCRIPT), status).returncode == int(status)
    assert kept(project)["second_tries"] == []


def history(folder: Path, *runs: dict[str, bool]) -> subprocess.CompletedProcess[str]:
    """Of runs, the oldest first: whether each test that was tried again passed."""
    files = []
    for number, tried in enumerate(runs):
        tries = [{"test": test, "passed": passed} for test, passed in tried.items()]
        document = {"date": f"2026-01-{number + 1:02}T00:00:00+00:00", "commit": f"c{number}", "second_tries": tries}
        files.append(folder / f"{(number * 7) % 100}.json")
        files[-1].write_text(json.dumps(document))
    return run(folder, str(SCRIPT), "--history", *map(str, sorted(files)))


def test_a_second_try_in_two_of_ten_runs_is_a_defect(tmp_path: Path) -> None:
    """Whichever of its parameters, since the code that waits is the same."""
    done = history(tmp_path, {"t.py::a[1]": True}, *[{}] * 8, {"t.py::a[2]": True, "t.py::b": True})
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "t.py::a: a second try in 2 of 10 runs (2026-01-01T00:00:00+00:00 at c0, 2026-01-10T00:00:00+00:00 at c9): "
        "a defect: it waits for a time, not for a condition",
        "t.py::b: a second try in 1 of 10 runs (2026-01-10T00:00:00+00:00 at c9): once",
    ]


def test_only_the_last_ten_runs_count(tmp_path: Path) -> None:
    done = history(tmp_path, {"t.py::a": True}, *[{}] * 9, {"t.py::a": True})
    assert done.returncode == 0 and "a second try in 1 of 10 runs" in done.stdout


def test_what_failed_alone_too_was_another_defect(tmp_path: Path) -> None:
    done = history(tmp_path, {"t.py::a": False}, {"t.py::a": True}, {"t.py::a": False})
    assert done.returncode == 0


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"date": "d", "commit": "c", "second_tries": [{"test": "t"}]}', None]
)
def test_a_file_that_no_run_kept_is_said(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "f.json").write_text(text)
    done = run(tmp_path, str(SCRIPT), "--history", "f.json")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("once_more_alone: f.json is not what a run keeps in out/second_try.json: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--history"], ["tests"]])
def test_other_words_are_refused(tmp_path: Path, words: list[str]) -> None:
    done = run(tmp_path, str(SCRIPT), *words)
    assert done.returncode == 2 and done.stderr.startswith("once_more_alone: STATUS or --history FILE... is wanted")
