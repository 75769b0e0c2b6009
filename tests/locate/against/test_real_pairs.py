"""Real trainings by gloo on this machine, with one part that takes longer, beside those without. What others do on its
cores meanwhile belongs to it: so the parts take a few times a step's time longer, and all of the answer is tested."""

from __future__ import annotations

import itertools
import json
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launch import Ranks
from support.paths import REPOSITORY

from laggard.cli import main
from laggard.locate.against.compare import compare
from laggard.locate.against.describe import sentence
from laggard.locate.against.digest import Described, digest_of
from laggard.model import Verdict
from laggard.recording.reader import read_recording
from laggard.wire import decode
from laggard.wire.digest import Comparison, Digest

pytestmark = [pytest.mark.slow, pytest.mark.together("compared runs")]

SCRIPT = REPOSITORY / "tests" / "support" / "training" / "compared_runs.py"
USUAL = 5  # runs without a change: ten pairs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, launch_in: Callable[..., Ranks]) -> Callable[..., Path]:
    """Records a training with these words; each kind of it once."""
    known: dict[tuple[str, ...], Path] = {}

    def recorded(*words: str, number: int = 0) -> Path:
        key = (*words, str(number))
        if key not in known:
            place = known[key] = tmp_path_factory.mktemp("run")
            launch_in(place, SCRIPT, words, extra={"LAGGARD_RECORD_DIR": str(place / "recording")})
        return known[key] / "recording"

    return recorded


def digest(folder: Path) -> Digest:
    found = digest_of(read_recording([folder]).timings, Described())
    assert found is not None
    return found


def test_ten_pairs_without_a_change_say_so(run: Callable[..., Path]) -> None:
    digests = [digest(run(number=number)) for number in range(USUAL)]
    found = [compare(*pair, "RUN") for pair in itertools.combinations(digests, 2)]
    answers = [sentence(each) for each in found]
    assert len(answers) == 10 and all(answer.startswith("No difference from RUN") for answer in answers), answers
    assert not any(each.changes or each.verdict is Verdict.FAIL for each in found)


@pytest.mark.wall_clock("2026-11-27, beside other tests: input")
@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("input=40", "input"),
        ("forward=30", "forward"),
        ("backward=30", "backward"),
        ("optimizer=30", "optimizer"),
        ("between_steps=30", "between steps"),
        ("checkpoint=400", "checkpoint"),
        ("reduce=30000", "transfers of all_reduce in dp of 2"),
        ("gather=30000", "transfers of all_gather in dp of 2"),
        ("rank1=30", "forward of n1 (rank 1)"),
    ],
)
def test_what_takes_longer_is_named_first(run: Callable[..., Path], word: str, what: str) -> None:
    found = compare(digest(run()), digest(run(word)), "RUN")
    assert found.changes, sentence(found)
    assert f" RUN: {what} +" in sentence(found), sentence(found)
    part, _, extra = word.partition("=")
    if part not in ("reduce", "gather"):
        expected = float(extra) / 1000 / (10 if part == "checkpoint" else 1)
        assert found.changes[0].seconds == pytest.approx(expected, rel=0.4)


def test_the_command_says_what_else_changed(
    run: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The recordings have the versions; in one of them torch's is another."""
    now = tmp_path / "now"
    now.mkdir()
    for file in run("forward=30").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        (around,) = (line["environment"] for line in lines if line.get("kind") == "environment")
        assert around["python"] == platform.python_version() and around["OMP_NUM_THREADS"] == "1"
        around["torch"] = "9.9"
        (now / file.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = str(run())
    assert main(["locate", "--trace", str(now), "--against", before]) == 1
    text = capfd.readouterr().out
    assert "forward +" in text and "; nothing else changed but torch " in text and " -> 9.9." in text
    assert main(["locate", "--trace", str(now), "--against", before, "--format", "json"]) == 1
    found = decode(capfd.readouterr().out.encode(), Comparison)
    assert [each.name for each in found.differences or ()] == ["torch"]
