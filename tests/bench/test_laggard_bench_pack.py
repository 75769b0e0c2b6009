"""A folder of the benchmark is packed with its digests, the same each time, and not without its README."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.paths import REPOSITORY


def pack(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(REPOSITORY / "scripts" / "pack_bench.py"), str(folder), "--version", "1", "--out", out]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cases"
    (made / "__pycache__").mkdir(parents=True)
    (made / "__pycache__" / "x.pyc").write_text("")
    (made / "README.md").write_text("What it is.\n")
    (made / "score.py").write_text("pass\n")
    return made


def test_an_archive_has_the_files_and_their_digests_and_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    first, second = (Path(pack(folder, tmp_path / out).stdout.strip()) for out in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        held = {name.partition("/")[2]: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    assert set(held) == {"README.md", "score.py", "LICENSE", "MANIFEST"}
    assert f"{hashlib.sha256(held['score.py']).hexdigest()}  score.py" in held["MANIFEST"].decode()


def test_what_cannot_be_packed_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").unlink()
    done = pack(folder, tmp_path / "out")
    assert done.returncode == 64 and "lacks README.md" in done.stderr and not (tmp_path / "out").exists()
    (folder / "README.md").symlink_to("/etc/hostname")
    assert "is a link" in pack(folder, tmp_path / "out").stderr
