"""Tensor parallelism on gloo with one slow rank: its waits are seen where Python waits, and where only C++ does the
verdict is unknown."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import TRAINING

from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.rankfile import RankFileReader
from laggard.rankfile.fact_names import UNSEEN_WAITS
from laggard.recording.reader import read_recording

pytestmark = pytest.mark.slow  # trainings with torch

STEPS, SLEEP = 40, 0.1  # as in the script


@pytest.fixture
def trained(tmp_path: Path, launch: Callable[..., Any]) -> Callable[[str], Any]:
    def train(way: str) -> Any:
        launch(TRAINING / "tensor_parallel.py", (way,), extra={"LAGGARD_RECORD_DIR": str(tmp_path / "recording")})
        files = [RankFileReader(str(path)) for path in (tmp_path / "ranks").rglob("*.rank")]
        return read_recording([tmp_path / "recording"]).timings, {file.identity["rank"]: file for file in files}

    return train


def test_the_slow_rank_of_a_tensor_parallel_group_is_named(trained: Callable[[str], Any]) -> None:
    timings, files = trained("eager")
    found = locate(timings)
    assert [(culprit.ranks, culprit.phase) for culprit in found.culprits] == [((1,), "forward")], found
    for file in files.values():
        counters = file.counters()
        assert counters is not None and counters.errors == counters.lost == 0
        assert UNSEEN_WAITS not in file.facts()
        for step in file.steps():
            assert step.end - step.start == sum(step.phases) + step.waited, step
    waited = [sum(step.waited for step in files[rank].steps()) / 1e9 for rank in (0, 1)]
    assert waited[0] - waited[1] > 0.5 * STEPS * SLEEP, "the other one waits for it"
    recorded = timings.waited_seconds.sum(axis=0)
    assert recorded[0] - recorded[1] > 0.5 * STEPS * SLEEP, "in the recording, too"
    for one, next_one in itertools.pairwise(files[0].collectives()):
        assert one.end >= one.arrival and next_one.end >= next_one.arrival


def test_waits_of_a_compiled_graph_are_unknown_and_nobody_is_accused(trained: Callable[[str], Any]) -> None:
    timings, files = trained("compiled")
    found = locate(timings)
    assert (found.verdict, found.culprits) == (Verdict.UNKNOWN, ())
    (note,) = (note for note in found.notes if note.kind == "unseen_waits")
    assert note.ranks == (0, 1) and "ranks 0-1" in note.text
    assert all(file.facts()[UNSEEN_WAITS] is True for file in files.values())
