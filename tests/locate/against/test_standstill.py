"""A run that came to a standstill is no healthy one, however its steps were until then."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.recordings import lines, write
from support.standing import FETCH, WAIT, took

from laggard.cli import main
from laggard.stacks.sampled import encode

IN_FLIGHT = {"kind": "collective", "rank": 0, "step": 40, "group": "g", "op": "all_reduce", "seq": 40}


def recording(folder: Path, stands: bool) -> str:
    """Forty steps of two ranks; then rank 1 stands in its own code, and both are killed."""
    folder.mkdir()
    for rank in range(2):
        stack = took(rank, FETCH if rank else WAIT, at=1000.0 * rank + 40.0)
        last: list[dict[str, Any]] = [{"kind": "end", "rank": rank, "lost": 0}]
        if stands:
            last = [{"kind": "stacks", "rank": rank, "stacks": json.loads(encode(stack))}]
        if stands and not rank:
            last.append({**IN_FLIGHT, "issued": 12.1, "start": 12.1, "end": None})
        write(folder / f"rank-{rank}.jsonl", [*lines(rank, steps=40), *last], ends=True, beats=True)
    return str(folder)


def test_its_comparison_is_unknown_and_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, hung = recording(tmp_path / "good", False), recording(tmp_path / "hung", True)
    assert main(["locate", "--trace", good, "--against", good]) == 0
    capsys.readouterr()
    assert main(["locate", "--trace", hung, "--against", good]) == 2
    text = capsys.readouterr().out
    assert text.startswith("This run came to a standstill: "), text
    assert "fetch (data.py:41)" in text.splitlines()[0] and "Until then: No difference" in text.splitlines()[0]


def test_the_job_that_is_asked_for_has_to_be_in_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = recording(tmp_path / "good", False)
    assert main(["locate", "--trace", good, "--against", good, "--job", "foo"]) == 64
    assert "not of foo" in capsys.readouterr().err
