"""`laggard locate --format json`, called as a function by a program that catches what it prints."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from support import recordings

from laggard.cli import main


def test_the_document_goes_to_a_stream_of_text(tmp_path: Path) -> None:
    for rank in range(4):
        recordings.write(tmp_path / f"rank-{rank}.jsonl", recordings.lines(rank, slow=0.1 if rank == 2 else 0.0))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["locate", "--trace", str(tmp_path), "--format", "json"])
    location = json.loads(printed.getvalue())
    assert (status, location["verdict"]) == (1, "fail") and location["culprits"][0]["ranks"] == [2]
