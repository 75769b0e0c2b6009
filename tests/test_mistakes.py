"""Every command's mistakes: one line that says what is wrong, exit status 64, and nothing on standard output.

A row of tests/data/mistakes.jsonl: the `words` of the command line, what it `says`, or all that it says, what it must
`never` say, the `files` of the folder in which it runs, byte by byte in Latin-1, and the `status` where it is another:
2 where nothing is wrong with the words, but the world lacks what they need.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS

from laggard.cli import main

ROWS = [json.loads(line) for line in (TESTS / "data" / "mistakes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row["words"]))
def test_a_mistake_is_one_line(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in row.get("files", {}).items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    for name in ("LAGGARD_RING_TOKEN", "LAGGARD_RING_TOKEN_FILE", "SLURM_JOB_ID", "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    before = sorted(tmp_path.iterdir())
    assert main(row["words"]) == row.get("status", 64)
    out, said = capsys.readouterr()
    assert out == "" and said.startswith("laggard: ") and said.count("\n") == 1, said
    assert all(words in said for words in ([row["says"]] if isinstance(row["says"], str) else row["says"])), said
    assert "never" not in row or row["never"] not in said, said
    assert sorted(tmp_path.iterdir()) == before, "and nothing is begun"


def test_where_json_is_asked_for_it_is_a_document_besides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--format", "json", "--op", "broadcast"]) == 64
    out, said = capsys.readouterr()
    document = json.loads(out)
    assert (document["schema"], document["exit_status"]) == ("laggard.error/1", 64) and said.count("\n") == 1
