"""Which tests a change can break: where a change begins, and what it reaches (scripts/changed_tests.py)."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import REPOSITORY
from support.rows import rows


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a repository of its own that has no history yet."""
    spec = importlib.util.spec_from_file_location("changed_tests", REPOSITORY / "scripts" / "changed_tests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return module


def git(folder: Path, *words: str) -> str:
    own = ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", *words]
    return subprocess.run(own, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, name: str) -> str:
    (folder / name).write_text(name)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", name)
    return git(folder, "rev-parse", "HEAD")


def test_without_a_history_nothing_changed(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--branch"]) == 0
    assert capsys.readouterr() == ("", "changed_tests: no history tells what changed\n")


def test_a_branch_begins_where_it_left_main_and_main_with_its_last_commit(script: ModuleType, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    first = commit(tmp_path, "one")
    assert script.base_of_branch() == "", "a first commit has none before it"
    second = commit(tmp_path, "two")
    assert script.base_of_branch() == first
    git(tmp_path, "update-ref", "refs/remotes/origin/main", second)
    assert script.base_of_branch() == first, "this is origin/main itself"
    commit(tmp_path, "three")
    commit(tmp_path, "four")
    (tmp_path / "new").touch()
    assert script.base_of_branch() == second
    assert script.changed_files(second) == {"three", "four", "new"}


@rows("reached_tests")
def test_a_file_reaches_the_tests_of_what_imports_it(
    path: str, reached: str, not_reached: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "REPOSITORY", REPOSITORY)
    found = script.affected_tests({path})
    assert reached in found and not_reached not in found


def test_what_stands_behind_every_test_reaches_all(script: ModuleType) -> None:
    assert script.affected_tests({"pyproject.toml", "docs/page.png"}) == ["tests"]


@pytest.mark.parametrize("words", [["--slow"], ["HEAD", "main"]])
def test_wrong_usage_is_one_line(words: list[str], script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(words) == 64
    assert capsys.readouterr().err == f"changed_tests: [BASE] or --branch is wanted, not {' '.join(words)}\n"
