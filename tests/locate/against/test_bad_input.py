"""`locate --against` with recordings that are cut, empty, of another kind, of one rank, hostile or large: one line that
says what is wrong, or an answer; never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.flight_recorder import dump, entry, write_dumps
from support.recordings import lines, write

from laggard.cli import main
from laggard.locate.against.compare import compare
from laggard.locate.against.describe import details, sentence
from laggard.locate.against.digest import digest_of
from laggard.recording.reader import read_recording
from laggard.wire import encode
from laggard.wire.digest import Digest

STEPS = 40
HOSTILE = "\x1b[31mred\nverdict: ok\u202e" + "x" * 100_000


def recording(folder: Path, ranks: int = 2, steps: int = STEPS, **facts: Any) -> Path:
    folder.mkdir()
    for rank in range(ranks):
        found = lines(rank, slow=0.01 * (rank % 2), steps=steps)
        found[0]["facts"] = facts
        write(folder / f"rank-{rank}.jsonl", found)
    return folder


def told(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["locate", *words])
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    return status, printed.out + printed.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\x00\xff" * 100, "is no recording"),
        (b'{"laggard_recording": 99, "job_id": "j"}\n', "is no recording"),
        (b'{"laggard_recording": 1, "job_id": "j"}\n', "holds no step after the warm-up"),
    ],
)
def test_a_file_without_a_run_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    good = str(recording(tmp_path / "good"))
    for words in (("--trace", good, "--against", str(bad)), ("--trace", str(bad), "--against", good)):
        status, text = told(capfd, *words)
        assert status == 64 and why in text and text.count("\n") == 1


def test_what_goes_with_a_collector_alone_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = str(recording(tmp_path / "good"))
    assert told(capfd, "--trace", good, "--against", "last") == (
        64,
        "laggard: --against last is kept by a collector: leave out --trace, or name a recording\n",
    )
    status, text = told(capfd, "--trace", good, "--against", good, "--html", str(tmp_path / "page.html"))
    assert status == 64 and "leave out" in text
    status, text = told(capfd, "--trace", good, "--against", str(tmp_path / "missing"))
    assert status == 64 and "no recording at" in text


def test_a_recording_that_was_cut_off_is_compared_as_far_as_it_goes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, cut = recording(tmp_path / "whole"), recording(tmp_path / "cut")
    file = cut / "rank-1.jsonl"
    file.write_bytes(file.read_bytes()[: int(0.7 * file.stat().st_size)])
    status, text = told(capfd, "--trace", str(cut), "--against", str(whole))
    assert status == 0 and text.startswith("No difference from ")


def test_a_few_steps_are_too_few(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    long, short = recording(tmp_path / "long"), recording(tmp_path / "short", steps=9)
    status, text = told(capfd, "--trace", str(short), "--against", str(long))
    assert status == 2 and "this run has 7 steps after the warm-up, 8 are needed to compare" in text


def test_a_run_of_one_rank_is_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = recording(tmp_path / "one", ranks=1), recording(tmp_path / "other", ranks=1)
    assert told(capfd, "--trace", str(one), "--against", str(other))[0] == 0


def test_dumps_tell_no_times(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = ("0", "default_pg", [0, 1])
    folder = write_dumps(tmp_path / "dumps", {rank: dump([world], [entry(world, "all_reduce", 1)]) for rank in (0, 1)})
    good = str(recording(tmp_path / "good"))
    status, text = told(capfd, "--trace", good, "--against", str(folder))
    assert status == 64 and "does not tell what steps are made of" in text


@pytest.mark.slow  # two thousand names of a hundred thousand characters
def test_hostile_names_break_no_line_and_no_bound(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    around = {f"NAME{number}{HOSTILE[:50]}": HOSTILE for number in range(2000)}
    bad = recording(
        tmp_path / "bad",
        script=HOSTILE,
        environment={**around, "torch": {"a": [1]}, "nccl": None},
        deepspeed=HOSTILE[:9],
    )
    for file in bad.iterdir():
        text = file.read_text()
        file.write_text(text.replace('"n1"', json.dumps(HOSTILE)).replace('"dp"', json.dumps(HOSTILE[:3000])))
    found = digest_of(read_recording([bad]).timings)
    assert found is not None and len(encode(found)) < 200_000
    status, text = told(capfd, "--trace", str(bad), "--against", str(recording(tmp_path / "good")))
    assert status in (0, 1, 2) and "\x1b" not in text and "\u202e" not in text
    assert all(len(line) < 1000 for line in text.splitlines()) and "\nverdict: ok" not in text


def test_a_large_job_has_a_small_digest(tmp_path: Path) -> None:
    """A thousand nodes, one of which is slow in the later run: it is among the few that a digest names."""
    from support.timings import job

    before = job(ranks=8000, steps=24, per_node=8)
    now = job(ranks=8000, steps=24, per_node=8, seed=1, slow=[(range(4000, 4008), 0.3)])
    digests = [digest_of(each) for each in (before, now)]
    assert all(each is not None and len(encode(each)) < 16_000 for each in digests)
    one, other = (each for each in digests if each is not None)
    found = compare(one, other, "RUN")
    assert found.changes[0].nodes == ("n500",) and found.changes[0].phase == "forward", sentence(found)


def test_numbers_that_no_clock_has_are_compared_without_a_failure() -> None:
    odd = Digest(
        job_id=None, script=None, started_at=None, world_size=2, ranks_seen=0, first_step=0, last_step=0, steps=99,
        step=zero(), rare=zero(), waits=None, drift=0.0, phases=("forward",), rows=(), operations=(), layout=(),
        calls={}, work=0.0, nodes=(), environment={},
    )  # fmt: skip
    found = compare(odd, odd, "RUN")
    assert sentence(found).startswith(
        "Seen: 0 of 2 ranks of this run; seen: 0 of 2 ranks of the run before. No diff"
    ) and list(details(found))


def zero() -> Any:
    from laggard.wire.digest import Estimate

    return Estimate(0.0, 0.0)
