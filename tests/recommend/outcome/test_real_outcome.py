"""Real trainings by gloo on this machine: what was advised for the first is done in the second, and what that gained is
measured. What others do on its cores meanwhile belongs to it: so the change is worth several times a step's noise, and
a pair of runs that others disturbed, of which the judge says that it shows no difference, is run again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.launch import Ranks
from support.paths import REPOSITORY

from laggard.cli import main
from laggard.recommend.outcome.values import NO_DIFFERENCE, AdviceDocument
from laggard.wire import decode

pytestmark = [pytest.mark.slow, pytest.mark.together("compared runs")]

SCRIPT = REPOSITORY / "tests" / "support" / "training" / "many_reductions.py"
PAIRS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, launch_in: Callable[..., Ranks]) -> Callable[..., str]:
    """Records a training with these variables, and these words."""

    def recorded(*words: str, **variables: str) -> str:
        place = tmp_path_factory.mktemp("run")
        extra = {"LAGGARD_RECORD_DIR": str(place / "recording"), **variables}
        launch_in(place, SCRIPT, words, extra=extra, fresh=2)  # torch reads the variable when it is imported
        return str(place / "recording")

    return recorded


@pytest.fixture(scope="module")
def debugged(run: Callable[..., str]) -> str:
    return run(TORCH_DISTRIBUTED_DEBUG="DETAIL")


def asked(capfd: pytest.CaptureFixture[str], before: str, after: str) -> AdviceDocument:
    assert main(["recommend", before, "--after", after, "--format", "json"]) == 0
    return decode(capfd.readouterr().out.encode(), AdviceDocument)


def test_a_variable_that_was_advised_is_changed_and_the_gain_is_measured(
    run: Callable[..., str], debugged: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(PAIRS):
        plain = run()
        found = asked(capfd, debugged, plain)
        (told,) = (it for it in found.runs[0].advised if it.key == "TORCH_DISTRIBUTED_DEBUG")
        if told.outcome is None or told.outcome.result != NO_DIFFERENCE:
            break
        debugged = run(TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert (told.current, told.recommended, told.kind) == ("DETAIL", "", "launcher TORCH_DISTRIBUTED_DEBUG")
    outcome = told.outcome
    assert outcome is not None and (outcome.done, outcome.result, outcome.as_promised) == ("yes", "gained", True), told
    assert outcome.ratio is not None and outcome.ratio > 1.1
    assert outcome.low is not None and outcome.high is not None and 1 < outcome.low <= outcome.ratio <= outcome.high
    (kind,) = (it for it in found.kinds if it.kind == told.kind)
    assert (kind.advised, kind.done, kind.gained, kind.promised, kind.as_promised) == (1, 1, 1, 1, 1)
    assert main(["recommend", debugged, "--after", plain]) == 0
    text = capfd.readouterr().out
    assert "Remove TORCH_DISTRIBUTED_DEBUG=DETAIL: done, and gained: " in text
    assert "TORCH_DISTRIBUTED_DEBUG is no longer set, before DETAIL" in text


def test_what_was_not_done_is_told(run: Callable[..., str], debugged: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = asked(capfd, debugged, run(TORCH_DISTRIBUTED_DEBUG="DETAIL"))
    (told,) = (it for it in found.runs[0].advised if it.key == "TORCH_DISTRIBUTED_DEBUG")
    assert told.outcome is not None and (told.outcome.done, told.outcome.ratio) == ("no", None)
    assert told.outcome.how == "TORCH_DISTRIBUTED_DEBUG is DETAIL still"


def test_what_else_was_changed_is_named_and_nothing_is_claimed(
    run: Callable[..., str], debugged: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second run has twice as many threads, and twice as large a batch as well."""
    found = asked(capfd, debugged, run("batch=16", OMP_NUM_THREADS="2"))
    (told,) = (it for it in found.runs[0].advised if it.key == "TORCH_DISTRIBUTED_DEBUG")
    outcome = told.outcome
    assert outcome is not None and (outcome.done, outcome.result, outcome.ratio) == ("yes", "unknown", None)
    assert "OMP_NUM_THREADS 1 -> 2" in outcome.why and "elements of input a step" in outcome.why
