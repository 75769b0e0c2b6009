"""What rank 0 says at the end of a run that was recorded."""

from pathlib import Path

import pytest
from support.recordings import lines, write

from laggard.trainer_hooks.output.recording_folder import tell_answer


def test_with_a_culprit_it_is_who_with_the_cost_what_to_do_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "rank-0.jsonl", lines(0) + lines(1, 0.15))
    tell_answer(str(tmp_path))
    who, advice, where = capsys.readouterr().err.splitlines()
    assert who.startswith("laggard: Rank 1 on n1 is slow in forward: fixing it would save 0.15 s")
    assert advice.startswith("laggard: What to do: see what else runs on its CPU cores")
    assert where == f"laggard: all of it: laggard locate --trace {tmp_path}"
