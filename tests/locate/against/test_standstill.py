"""A run that came to a standstill is no healthy one, however its steps were until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.cli import main
from laggard.stacks.sampled import STALLED, Counted, Frame, Sampled, Thread, encode

HEAD = '{"laggard_recording": 1, "job_id": "j", "ends": true, "beats": true}'


def recording(folder: Path, stands: bool) -> str:
    """Forty steps of two ranks; then rank 1 stands in its own code, and both are killed."""
    folder.mkdir()
    for rank in range(2):
        groups = '{"dp:0-1": {"role": "dp", "ranks": [0, 1]}}'
        about = f'"rank": {rank}, "node": "n", "world_size": 2, "attempt": 0, "unix_minus_clock": 0.0'
        lines = [HEAD, f'{{"kind": "rank", {about}, "groups": {groups}}}']
        for step in range(40):
            at, of = 0.1 * step, f'"rank": {rank}, "step": {step}'
            lines += [
                f'{{"kind": "span", {of}, "name": "forward", "start": {at}, "end": {at + 0.05}, "micro": 0}}',
                f'{{"kind": "collective", {of}, "group": "dp:0-1", "op": "all_reduce", "seq": {step}, "bytes": 4096,'
                f' "issued": {at + 0.05}, "start": {at + 0.05}, "end": {at + 0.06}, "waited": 0.01, "clock": "host"}}',
                f'{{"kind": "step", {of}, "start": {at}, "end": {at + 0.1}}}',
            ]
        if stands and not rank:
            of = '"rank": 0, "step": 40, "group": "dp:0-1", "op": "all_reduce", "seq": 40, "bytes": 4096'
            times = '"issued": 4.05, "start": 4.05, "end": null, "waited": 0.0, "clock": "host"'
            lines.append(f'{{"kind": "collective", {of}, {times}}}')
        if stands:
            stack = Counted(1, (Frame("fetch" if rank else "all_reduce", "/home/u/train.py", 21),))
            sampled = Sampled("j", rank, "n", 1, STALLED, 40.0, 0.0, (Thread("m", (stack,)),), 31.0)
            lines.append(f'{{"kind": "stacks", "rank": {rank}, "stacks": {encode(sampled).decode()}}}')
        else:
            lines.append(f'{{"kind": "end", "rank": {rank}, "lost": 0}}')
        (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def test_its_comparison_is_unknown_and_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, hung = recording(tmp_path / "good", False), recording(tmp_path / "hung", True)
    assert main(["locate", "--trace", good, "--against", good]) == 0
    capsys.readouterr()
    assert main(["locate", "--trace", hung, "--against", good]) == 2
    text = capsys.readouterr().out
    assert text.startswith("This run came to a standstill: "), text
    assert "fetch (train.py:21)" in text.splitlines()[0] and "Until then: No difference" in text.splitlines()[0]


def test_the_job_that_is_asked_for_has_to_be_in_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = recording(tmp_path / "good", False)
    assert main(["locate", "--trace", good, "--against", good, "--job", "foo"]) == 64
    assert "not of foo" in capsys.readouterr().err
