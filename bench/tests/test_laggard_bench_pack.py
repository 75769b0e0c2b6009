"""laggard-bench is packed as tools, cases, and truths apart: the same each time, with digests, and so that what was
unpacked works."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from common.cases_by_hand import make_case
from laggard_bench import figures, formats, pack


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    make_case(tmp_path / "cases", "0000", 2)
    make_case(tmp_path / "cases", "0001", None)
    return tmp_path / "cases"


def packed(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, Path]]:
    """The digests that it prints, and the archives."""
    assert pack.main([*map(str, arguments)]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    return [(digest, Path(path)) for digest, path in lines]


def held(archive: Path) -> dict[str, bytes]:
    """An archive's files, by name, once its manifest was checked."""
    with tarfile.open(archive) as tar:
        found = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    (manifest,) = (name for name in found if "MANIFEST" in name)
    listed = dict(reversed(line.split("  ")) for line in found.pop(manifest).decode().splitlines())
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    assert {f"{pack.NAME}/{name}": digest for name, digest in listed.items()} == digests
    assert f"{pack.NAME}/laggard_bench/LICENSE" in found
    return found


def test_archives_have_digests_and_are_the_same_each_time(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = packed(cases, "--out", tmp_path / "a", capsys=capsys)
    for path in cases.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    second = packed(cases, "--out", tmp_path / "b", capsys=capsys)
    assert [digest for digest, _ in first] == [digest for digest, _ in second]
    for digest, archive in first:
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == digest
    assert len(list((tmp_path / "a").iterdir())) == len(first) == 3
    with tarfile.open(first[1][1]) as tar:
        assert {(entry.mtime, entry.mode, entry.uid, entry.uname) for entry in tar} == {(pack.TIME, 0o644, 0, "")}


def test_no_truth_is_among_the_cases(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools, public, truth = packed(cases, "--part", "held-out", "--out", tmp_path / "out", capsys=capsys)
    assert [path.name for _, path in (tools, public, truth)] == [
        f"{pack.NAME}-tools.tar.gz",
        f"{pack.NAME}-held-out.tar.gz",
        f"{pack.NAME}-held-out-truth.tar.gz",
    ]
    open_files, kept = set(held(public[1])), set(held(truth[1]))
    of_case = f"{pack.NAME}/held-out/0000"
    assert {f"{of_case}/recording/rank-{rank}.jsonl" for rank in range(4)} <= open_files
    assert not [name for name in open_files if "truth" in name]
    assert f"{of_case}/truth.json" in kept and not [name for name in kept if "recording" in name]


@pytest.mark.slow
def test_what_was_unpacked_works_without_laggard(
    cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the README says it, in an empty folder."""
    for _, archive in packed(cases, "--out", tmp_path / "dist", capsys=capsys):
        subprocess.run(["tar", "xzf", archive], cwd=tmp_path, check=True)
    here = tmp_path / pack.NAME

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, "-I", "-S", *words], cwd=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "recall                   1 of 1" in run("laggard_bench/score.py", "cases", "laggard_bench/example_entry.py")
    assert run("laggard_bench/validate.py", "cases") == ""
    again = run("laggard_bench/pack.py", "cases", "--out", "again")
    first = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((tmp_path / "dist").iterdir())]
    assert sorted(line.split("  ")[0] for line in again.splitlines()) == sorted(first)


def test_what_cannot_be_packed_is_said(cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*more: str) -> str:
        assert pack.main([str(cases), "--out", str(tmp_path / "out"), *more]) == 64
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    for part in ("tools", "a-truth", "../x", "/x", ""):
        assert "--part is a word" in refused("--part", part)
    truth = cases / "0001" / "truth.json"
    whole = truth.read_text()
    truth.write_text(json.dumps(json.loads(whole) | {"verdicts": ["fine"]}))
    assert f'{truth}: verdicts[0]: "fine" is none of ok' in refused()
    truth.unlink()
    assert "0001 lacks truth.json" in refused()
    truth.write_text(whole)
    file = cases / "0000" / "recording" / "rank-0.jsonl"
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert "rank-0.jsonl: no file rank-N.jsonl" in refused()


def test_the_readme_is_of_this_version_and_names_what_there_is() -> None:
    readme = (pack.HERE / "README.md").read_text()
    assert readme.startswith(f"# laggard-bench {figures.VERSION}\n")
    assert set(re.findall(r"laggard-bench-[0-9.]+[0-9]", readme)) == {pack.NAME}
    packed = {name.removeprefix("laggard_bench/") for name, _ in pack.tools()}
    for name in re.findall(r"laggard_bench/(\w+\.py)|\]\(([\w.]+)\)|`(\w+\.py)`", readme):
        assert {*name} - {""} <= packed, name
    for word in formats.schema("answer")["properties"]["verdict"]["enum"]:
        assert f"| `{word}` |" in readme
    for kind in formats.schema("recording")["$defs"]:
        assert kind == "head" or f"`{kind}`" in readme
