"""The RPM of a release: what is in it, what it asks for, what it does. `make install-check` installs a whole one."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY

from laggard import __version__

TREE = {
    "etc/laggard/agent.yaml": "{}\n",
    "opt/laggard/bin/laggard": "#!/bin/sh\n",
    "opt/laggard/lib/python3.12/site-packages/laggard/__init__.py": "",
    "usr/lib/systemd/system/laggard-agent.service": "[Service]\n",
    "usr/share/doc/laggard/LICENSE": "",
    "usr/share/man/man1/laggard.1": ".TH laggard\n",
}


@pytest.fixture
def rpm_package(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))  # where it looks for its neighbours
    return importlib.import_module("rpm_package")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tree"


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def built(rpm_package: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not (shutil.which("rpmbuild") and shutil.which("rpm")):
        pytest.skip("needs rpmbuild (Debian: rpm)")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    out = tmp_path / "out"
    out.mkdir()
    rpm_package.build(tree, out, __version__, "3.12", run)
    (package,) = out.iterdir()
    assert package.name == f"laggard-{__version__}-1.py3.12.{platform.machine()}.rpm"
    return package


def test_it_has_the_files_and_asks_for_its_python(built: Path) -> None:
    files = run("rpm", "-qp", "--list", built).split()
    assert {f"/{name}" for name in TREE} <= {*files} and "/usr/lib/systemd/system" not in files, "which is systemd's"
    assert run("rpm", "-qp", "--configfiles", built).split() == ["/etc/laggard/agent.yaml"]
    assert "/usr/bin/python3.12" in run("rpm", "-qp", "--requires", built).splitlines()
    owners = run("rpm", "-qp", "--qf", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]", built).split()
    assert {*owners} == {"root:root"}


def test_its_scripts_are_sound_and_start_nothing_that_did_not_run(built: Path, tmp_path: Path) -> None:
    for name in ("POSTIN", "POSTTRANS", "PREUN", "POSTUN"):
        script = run("rpm", "-qp", "--qf", f"%{{{name}}}", built)
        assert "systemctl enable" not in script and "systemctl start" not in script
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        run("sh", "-n", tmp_path / name)
        if shutil.which("shellcheck"):
            run("shellcheck", "--exclude=SC2086", tmp_path / name)  # one word a unit
    assert "dnf install python3.12" in (tmp_path / "POSTTRANS").read_text(), "where it is not there"


def test_the_same_tree_makes_the_same_package(built: Path, rpm_package: Any, tree: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    rpm_package.build(tree, again, __version__, "3.12", run)
    (package,) = again.iterdir()
    assert package.read_bytes() == built.read_bytes()


def test_a_file_in_a_folder_of_nobody_is_refused(rpm_package: Any, tree: Path) -> None:
    (tree / "srv").mkdir()
    (tree / "srv" / "file").touch()
    with pytest.raises(ValueError, match="/srv/file is in no folder that the package knows"):
        rpm_package.listed(tree)


def test_what_another_python_needs_is_not_forgotten(rpm_package: Any, tmp_path: Path) -> None:
    """pip chooses packages by the markers of the Python that runs it."""
    pytest.importorskip("packaging")
    for name, lines in {
        "laggard": ["Requires-Dist: Old_Helper; python_version < '3.11'", "Requires-Dist: other; extra == 'x'"],
        "here": ["Requires-Dist: laggard"],
    }.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *lines, ""])
        )
    assert rpm_package.missing(tmp_path, "3.10") == ['laggard: Old_Helper; python_version < "3.11"']
    assert rpm_package.missing(tmp_path, "3.12") == []


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="a release is made from a git checkout")
def test_without_rpmbuild_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    words = [sys.executable, REPOSITORY / "scripts" / "release.py", "--out", tmp_path / "out", "rpm"]
    environ = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("release: no RPM without rpmbuild: "), done
