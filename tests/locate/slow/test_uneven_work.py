"""A rank with more to do is told from a slower machine by the elements of its inputs."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.rows import rows
from support.timings import job, with_phases

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

FORWARD, BACKWARD, OPTIMIZER, BETWEEN = (
    PHASES.index(name) for name in ("forward", "backward", "optimizer", "between_steps")
)
ROWS, RANKS, LONG = 60, 4, 240


def timings(slow: int = 1, passes: float = 2.0, update: float = 1.0, **options: Any) -> JobTimings:
    """A job of ranks on one machine, of which one takes `passes` times as long in forward and backward, and `update`
    times as long in the optimizer."""
    made = job(RANKS, ROWS, **options)
    for phase, times in ((FORWARD, passes), (BACKWARD, passes), (OPTIMIZER, update)):
        made.phase_seconds[:, slow, phase] *= times
    return with_phases(made)


def work(slow: int, more: float, tokens: float = 4096.0) -> np.ndarray[Any, Any]:
    found = np.full((ROWS, RANKS), tokens)
    found[:, slow] *= more
    return found


@pytest.mark.parametrize(("passes", "more"), [(2.0, 2.0), (1.3, 1.3), (2.6, 2.0), (1.5, 4.0)])
def test_more_tokens_are_more_work_and_no_machine_is_accused(passes: float, more: float) -> None:
    """Also where the time grows faster than the tokens, as attention's does, or slower, as that of small batches."""
    (culprit,) = locate(timings(passes=passes, work=work(1, more))).culprits
    assert (culprit.kind, culprit.ranks, culprit.node, culprit.gpu) == ("uneven_work", (1,), None, None)
    assert "4,096" in culprit.evidence[0] and "batches" in culprit.advice and "CPU" not in culprit.advice


@pytest.mark.parametrize(("passes", "more"), [(2.0, 1.0), (3.0, 1.3), (2.0, 0.5)])
def test_a_rank_that_is_slower_than_its_tokens_explain_is_a_slow_machine(passes: float, more: float) -> None:
    (culprit,) = locate(timings(passes=passes, update=passes, work=work(1, more))).culprits
    assert (culprit.kind, culprit.ranks, culprit.node) == ("slow_compute", (1,), "n0")


@pytest.mark.parametrize(("longer", "more", "kind"), [(2.0, 2.0, "uneven_work"), (2.0, 1.0, "slow_host")])
def test_more_tokens_explain_time_between_the_steps_too(longer: float, more: float, kind: str) -> None:
    """Reinforcement learning generates there."""
    made = job(RANKS, ROWS, work=work(1, more))
    made.phase_seconds[:, :, BETWEEN] = 0.1
    made.phase_seconds[:, 1, BETWEEN] *= longer
    location = locate(with_phases(made))
    told = [(each.kind, each.ranks) for each in (*location.culprits, *location.notes)]
    assert told == [(kind, (1,))] and (location.culprits == ()) == (kind == "uneven_work")


def mixed(slow: int, more: float, gpu: float, spread: float = 0.2) -> JobTimings:
    """A job with sequences of many lengths: each rank's passes take as long as its tokens. One rank has `more` of them
    as a rule, and its GPU is slower by the factor `gpu`."""
    draw = np.random.default_rng(1)
    tokens = 4096.0 * draw.uniform(1 - spread, 1 + spread, (LONG, RANKS))
    tokens[:, slow] *= more
    made = job(RANKS, LONG, work=tokens, gpus=("GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    for phase in (FORWARD, BACKWARD):
        made.phase_seconds[:, :, phase] *= tokens / 4096.0
        made.phase_seconds[:, slow, phase] *= gpu
    return with_phases(made)


@pytest.mark.parametrize(("more", "gpu"), [(1.04, 1.3), (1.1, 1.3), (1.05, 1.15)])
def test_a_slow_gpu_is_not_excused_by_a_few_more_tokens(more: float, gpu: float) -> None:
    """The other ranks' steps tell how much longer so many more take."""
    (culprit,) = locate(mixed(1, more, gpu)).culprits
    assert (culprit.kind, culprit.ranks, culprit.node) == ("slow_compute", (1,), "n0")


@pytest.mark.parametrize(("more", "gpu"), [(1.3, 1.0), (1.2, 1.03)])
def test_more_tokens_than_all_others_have_are_more_work_by_their_own_steps(more: float, gpu: float) -> None:
    """By noise as large as that of so unequal lengths, four ranks do not tell it from chance in a minute."""
    location = locate(mixed(1, more, gpu, spread=0.3))
    told = [(each.kind, each.ranks) for each in (*location.culprits, *location.notes)]
    assert told[0] in (("uneven_work", (1,)), ("slow_in_few_steps", (1,)))


def test_steps_whose_records_are_lost_are_no_less_work() -> None:
    """Of the peers more records are lost than of the slow rank; all have the same tokens in every step."""
    tokens = work(1, 1.0)
    draw = np.random.default_rng(2)
    for rank, lost in ((0, 0.4), (1, 0.1), (2, 0.4), (3, 0.4)):
        tokens[draw.random(ROWS) < lost, rank] = np.nan
    (culprit,) = locate(timings(passes=1.3, update=1.3, work=tokens)).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_compute", (1,))


def test_where_the_tokens_are_equal_an_update_as_fast_as_the_peers_excuses_nobody() -> None:
    """A GPU or CPU may be slow in the passes alone, and the tokens say that it had no more to do."""
    (culprit,) = locate(timings(passes=2.0, update=1.0, work=work(1, 1.0))).culprits
    assert culprit.kind == "slow_compute"


@rows("locate/slower_machines")
def test_without_tokens_a_slow_machine_stays_one(slower: dict[str, Any]) -> None:
    (culprit,) = locate(timings(passes=2.0, **slower)).culprits
    assert (culprit.kind, culprit.node) == ("slow_compute", "n0")


def test_one_pass_alone_is_no_more_work() -> None:
    made = job(RANKS, ROWS)
    made.phase_seconds[:, 1, FORWARD] *= 2.0
    (culprit,) = locate(with_phases(made)).culprits
    assert (culprit.kind, culprit.phase) == ("slow_compute", "forward")


def test_longer_batches_by_turns_are_a_note() -> None:
    """Each rank gets a long batch now and then: no rank has more to do than the others."""
    made, tokens = job(RANKS, 240), np.full((240, RANKS), 4096.0)
    turns = np.random.default_rng(3).integers(0, RANKS, 80)
    for step, rank in zip(range(0, 240, 3), turns, strict=True):
        made.phase_seconds[step, rank, [FORWARD, BACKWARD]] *= 1.6
        tokens[step, rank] *= 1.6
    location = locate(dataclasses.replace(with_phases(made), work=tokens))
    assert location.culprits == () and location.verdict is Verdict.OK


def doing_more(rank: int, phase: int, seconds: float, every: int = 1, peers: float = 0.0) -> JobTimings:
    """A job in which a rank does something for so long, every so many steps, and its peers for `peers` seconds."""
    made = job(RANKS, 240)
    made.phase_seconds[:, :, phase] += peers
    made.phase_seconds[::every, rank, phase] += seconds
    return with_phases(made)


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint", "logging"])
@pytest.mark.parametrize(("rank", "every"), [(0, 1), (0, 10), (2, 1)])
def test_what_a_script_leaves_to_one_rank_is_a_note(phase: str, rank: int, every: int) -> None:
    location = locate(doing_more(rank, PHASES.index(phase), 0.2 * every**0.5, every))
    assert location.culprits == () and location.verdict is Verdict.OK and location.slowdown_ratio == 1.0
    (note,) = (note for note in location.notes if note.kind == "uneven_work")
    assert note.ranks == (rank,) and phase in note.text


@pytest.mark.parametrize("phase", ["checkpoint", "logging"])
def test_a_machine_that_is_slower_at_what_all_do_is_accused(phase: str) -> None:
    (culprit,) = locate(doing_more(1, PHASES.index(phase), 0.1, peers=0.06)).culprits
    assert (culprit.kind, culprit.ranks, culprit.phase, culprit.node) == ("slow_host", (1,), phase, "n0")


def test_work_between_the_steps_of_another_rank_than_0_is_its_hosts() -> None:
    (culprit,) = locate(doing_more(1, BETWEEN, 0.1)).culprits
    assert (culprit.kind, culprit.ranks, culprit.phase) == ("slow_host", (1,), "between_steps")
    assert "DataLoader" in culprit.advice and "phase()" in culprit.advice


@pytest.mark.parametrize("rank", [0, RANKS - 1])
@rows("locate/places_of_scripts")
def test_a_scripts_place_excuses_what_the_chance_of_the_place_and_the_cost_allow(
    rank: int, seconds: float, every: int, verdict: str, kind: str | None
) -> None:
    location = locate(doing_more(rank, BETWEEN, seconds, every))
    assert location.verdict == verdict and [note.kind for note in location.notes] == [kind] * (kind is not None)
    assert [(each.kind, each.ranks, each.node) for each in location.culprits] == [("uneven_work", (rank,), None)] * (
        kind is None
    )
