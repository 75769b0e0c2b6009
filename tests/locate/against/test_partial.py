"""`--against` says of how many ranks it speaks, what damage took, and where in the code a part takes longer."""

from pathlib import Path

import pytest
from msgspec import structs
from support.recordings import lines, write

from laggard.cli import main
from laggard.locate.against.compare import compare
from laggard.locate.against.describe import details, places_of_changes, sentence
from laggard.model import Verdict
from laggard.stacks.sampled import ASKED, Counted, Frame, Sampled, Thread
from laggard.wire.digest import Change, Digest, DigestOperation, Estimate

MODULE = Frame("<module>", "/home/u/train.py", 9)
TOKENIZE, MODEL = Frame("tokenize", "/home/u/data.py", 88), Frame("attend", "/home/u/model.py", 5)


def recording(folder: Path, ranks: int = 2, damaged: bool = False) -> str:
    folder.mkdir()
    for rank in range(ranks):
        file = folder / f"rank-{rank}.jsonl"
        write(file, lines(rank, steps=40))
        if damaged:
            head, about, *rest = file.read_text().splitlines()
            file.write_text("\n".join([head, about, *(line[:20] + "?" for line in rest)]) + "\n")
    return str(folder)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["locate", *words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def digest(seen: int, seconds: float) -> Digest:
    return Digest(
        job_id="j", script=None, started_at=None, world_size=2, ranks_seen=seen, first_step=0, last_step=98, steps=99,
        step=Estimate(seconds, 1e-6), rare=Estimate(0.0, 0.0), waits=None, drift=1.0, phases=(), rows=(),
        operations=(), layout=(), calls={}, work=0.0, nodes=("n0",), environment={},
    )  # fmt: skip


def test_whose_ranks_were_not_all_seen_claims_nothing_of_the_last() -> None:
    whole = sentence(compare(digest(2, 0.1), digest(2, 0.2), "RUN"))
    assert "no rank is the last more often" in whole and "een:" not in whole
    for before, now, which in ((2, 1, "this run"), (1, 2, "the run before")):
        found = compare(digest(before, 0.1), digest(now, 0.2), "RUN")
        text = sentence(found)
        assert text.startswith(f"Seen: 1 of 2 ranks of {which}. "), text
        assert "the last more often" not in text and "one that was not seen" in text
        assert found.verdict is Verdict.UNKNOWN


def test_a_node_that_was_not_seen_has_not_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, part = recording(tmp_path / "good"), recording(tmp_path / "part", ranks=1)
    for file in Path(part).iterdir():
        file.write_text(file.read_text().replace('"world_size": 1', '"world_size": 2'))
    status, text = told(capsys, "--trace", part, "--against", good)
    assert text.startswith("Seen: 1 of 2 ranks of this run."), text
    assert " left" not in text


def test_damage_is_unknown_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = recording(tmp_path / "good"), recording(tmp_path / "bad", damaged=True)
    for words, which in (
        (("--trace", good, "--against", bad), "the run before"),
        (("--trace", bad, "--against", good), "this run"),
    ):
        status, text = told(capsys, *words)
        assert status == 2 and f"{which} holds no step after the warm-up" in text.splitlines()[0], text
        assert "left out, no records" in text


def test_nothing_and_the_same_run_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = recording(tmp_path / "good")
    assert told(capsys, "--trace", good, "--against", "")[1].startswith("laggard: --against names nothing")
    assert told(capsys, "--trace", "", "--against", good)[1].startswith("laggard: --trace names nothing")
    status, text = told(capsys, "--trace", good, "--against", f"{good}/")
    assert status == 0 and "Both are the same recording" in text
    status, text = told(capsys, "--trace", good, good)
    assert "2 files given twice: read once" in text and "more than once" not in text


def test_sizes_are_written_as_people_read_them() -> None:
    def moved(size: float, work: float) -> Digest:
        took = Estimate(0.01, 1e-6)
        operation = DigestOperation("all_reduce", "dp", 8, 1, None, size, 1.0, took, took)
        return structs.replace(digest(2, 0.1), operations=(operation,), work=work)

    text = "\n".join(details(compare(moved(1.342e9, 1048576.0), moved(2.684e9, 2097152.0), "RUN")))
    assert "bytes of all_reduce in dp of 8 a step 1.34 GB -> 2.68 GB" in text
    assert "elements of input a step 1,048,576 -> 2,097,152" in text


def sampled(rank: int, *stacks: Counted) -> Sampled:
    return Sampled("j", rank, "n", 1, ASKED, 1.0, 10.0, (Thread("MainThread", stacks),))


def test_the_line_that_takes_longer_is_told() -> None:
    change = Change(
        kind="phase", phase="forward", before_seconds=0.1, now_seconds=0.2, seconds=0.1, low_seconds=0.09,
        high_seconds=0.11, ratio=1.0,
    )  # fmt: skip
    model, tokens = (Counted(100, (frame, MODULE), "forward") for frame in (MODEL, TOKENIZE))
    other = Counted(500, (MODULE,), "backward")
    (note,) = places_of_changes([change], [sampled(0, model, tokens, other)], [sampled(0, model, other)])
    assert note.text == "in the code, forward: 50 % of the samples in tokenize (data.py:88); before 0 %"
    (note,) = places_of_changes([change], [sampled(0, model)], [sampled(0, model)])
    assert "100 % of the samples in" in note.text and "attend (model.py:5); before 100 %" in note.text
    assert not places_of_changes([change], [sampled(0, other)], [])
