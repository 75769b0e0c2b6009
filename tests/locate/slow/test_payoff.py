"""What a culprit is worth: by replaying what waits for what, so that slack, overlap and other culprits are in it."""

import numpy as np
import pytest
from support.collective_rows import Row, collectives
from support.timings import job

from laggard.locate.collectives import ProcessGroup
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

RANKS, STEPS = 8, 20
TRANSFER = 0.01


def two_stages(slow: dict[int, tuple[float, float]], overlapped: bool = False, late: float = 0.0) -> JobTimings:
    """Ranks 0-3 work 0.5 s before each of a step's two collectives of all, ranks 4-7 work 1.0 and 0.2 s. `slow`: by how
    much a rank's work is longer. `overlapped`: what is before the first collective is launched first, and waited for
    before the second. `late`: after how many seconds more one of the ranks 4-7 goes on from a step's second one."""
    generator = np.random.default_rng(1)
    work = np.array([[0.5, 0.5]] * 4 + [[1.0, 0.2]] * 4)[None] * generator.normal(1, 0.002, (STEPS, RANKS, 2))
    for rank, more in slow.items():
        work[:, rank] += more
    offset = generator.uniform(-1000, 1000, RANKS)
    now = np.zeros(RANKS)
    rows: list[Row] = []

    def a_row(rank: int, step: int, seq: int, start: float, end: float, waited: float) -> Row:
        times = start + offset[rank], end + offset[rank], waited
        return Row(rank, step + 2, 0, "all_reduce", seq, *times, size=8)

    waited = np.zeros((STEPS, RANKS))
    for step in range(STEPS):
        begin = now.copy()
        arrivals = now + work[step, :, 0]
        over = arrivals.max() + TRANSFER
        second = arrivals + work[step, :, 1] if overlapped else over + work[step, :, 1]
        for rank in range(RANKS):
            need = second[rank] if overlapped else arrivals[rank]
            end = max(over, need)
            rows.append(a_row(rank, step, 2 * step, arrivals[rank], end, end - need))
            waited[step, rank] += end - need
        ready = np.maximum(second, over) if overlapped else second
        last = ready.max() + TRANSFER
        now = np.full(RANKS, last)
        now[4 + step % 4] += late
        for rank in range(RANKS):
            rows.append(a_row(rank, step, 2 * step + 1, ready[rank], now[rank], now[rank] - ready[rank]))
            waited[step, rank] += now[rank] - ready[rank]
        assert (begin <= now).all()
    made = collectives(rows, [ProcessGroup("world", "world", tuple(range(RANKS)))])
    timings = job(RANKS, STEPS, per_node=2, positions=(np.arange(RANKS) // 4).astype(np.int32), collectives=made)
    timings.phase_seconds[:] = 0.0
    timings.phase_seconds[:, :, 1:3] = work
    timings.waited_seconds[:] = waited
    timings.step_seconds[:] = waited + work.sum(axis=2)
    return timings


def worth(timings: JobTimings) -> dict[int, float]:
    return {culprit.ranks[0]: culprit.recoverable_ratio or 0.0 for culprit in locate(timings).culprits}


def test_what_another_stage_takes_anyway_is_not_saved() -> None:
    """Rank 1 is slow while the other stage works for longer still, so that its repair would gain nothing."""
    location = locate(two_stages({1: (0.3, 0.0)}))
    assert (location.verdict, location.culprits) == (Verdict.OK, ())


def test_what_all_wait_for_is_saved() -> None:
    location = locate(two_stages({1: (0.0, 0.3)}))
    assert location.culprits[0].recoverable_ratio == pytest.approx(0.3 / 1.82, abs=0.01)
    assert location.slowdown_ratio == pytest.approx(1.82 / 1.52, abs=0.01)


def test_what_the_replay_does_not_explain_stays() -> None:
    """After each step one rank goes on late, and all wait for it: a step takes 0.2 s longer, with or without rank 1."""
    location = locate(two_stages({1: (0.0, 0.3)}, late=0.2))
    assert location.culprits[0].recoverable_ratio == pytest.approx(0.3 / 2.02, abs=0.005)
    assert location.slowdown_ratio == pytest.approx(2.02 / 1.72, abs=0.01)


def test_of_a_slowdown_that_is_in_part_hidden_the_rest_is_saved() -> None:
    assert worth(two_stages({1: (0.7, 0.0)})) == {1: pytest.approx(0.2 / 1.72, abs=0.01)}


def test_what_overlapping_hides_is_not_saved() -> None:
    """Where the first collective is waited for after the work that follows it, only the sum of a rank's work counts."""
    assert worth(two_stages({1: (0.0, 0.3)}, overlapped=True)) == {1: pytest.approx((1.31 - 1.21) / 1.31, abs=0.02)}


def test_of_two_culprits_each_is_worth_what_it_saves() -> None:
    """Rank 1 delays the second collective by 0.3 s, rank 5 the first one by 0.2 s."""
    found = worth(two_stages({1: (0.0, 0.3), 5: (0.2, 0.0)}))
    assert found == {1: pytest.approx(0.3 / 2.02, abs=0.01), 5: pytest.approx(0.2 / 2.02, abs=0.01)}
    assert list(found) == [1, 5], "the one that is worth more comes first"


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_waits_that_come_steps_later_hide_nothing_of_what_is_saved(delay: int) -> None:
    """Two ranks of one machine launch an all-reduce at the end of each step and wait for it `delay` steps later. Who
    spends those steps between both tells little of how long it took."""
    work, steps = np.array([0.4, 0.6]), 40
    now, waited = np.zeros(2), np.zeros((steps, 2))
    came = np.zeros((steps, 2))
    rows: list[Row] = []
    for step in range(steps):
        came[step] = now = now + work
        if step >= delay:
            over = came[step - delay].max() + TRANSFER
            waited[step] = np.maximum(0.0, over - now)
            now = np.maximum(now, over)
            times = zip(came[step - delay].tolist(), now.tolist(), waited[step].tolist(), strict=True)
            rows += [Row(r, step - delay + 2, 0, "all_reduce", step - delay, *each) for r, each in enumerate(times)]
    timings = job(2, steps, per_node=2, collectives=collectives(rows, [ProcessGroup("world", "world", (0, 1))]))
    timings.phase_seconds[:] = 0.0
    timings.phase_seconds[:, :, 1] = work
    timings.waited_seconds[:] = waited
    timings.step_seconds[:] = waited + work
    assert worth(timings) == {1: pytest.approx(0.2 / 0.6, abs=0.02)}


@pytest.mark.parametrize("stalled", ["collectives", "steps"])
def test_a_stall_of_one_step_does_not_drown_what_a_slow_rank_costs(stalled: str) -> None:
    """Rank 1 was stopped for 150 s, as by a debugger, and goes on slow as before."""

    def job_of(stall: float) -> JobTimings:
        timings = two_stages({1: (0.6, 0.6)}) if stalled == "collectives" else job(8, 40, slow=[((1,), 0.5)])
        timings.phase_seconds[7, 1, 1] += stall
        timings.waited_seconds[7] += np.where(np.arange(8) == 1, 0.0, stall)
        timings.step_seconds[7] += stall
        if timings.collectives is not None:
            later = np.where(timings.collectives.step == 9, stall, 0.0)
            after = np.where(timings.collectives.step > 9, stall, 0.0) + later
            timings.collectives.start[:] += after
            timings.collectives.end[:] += after
        return timings

    calm, hit = locate(job_of(0.0)), locate(job_of(150.0))
    (before,), (after,) = calm.culprits, hit.culprits
    assert after.ranks == (1,) and after.recoverable_ratio == pytest.approx(before.recoverable_ratio, rel=0.1)
    assert [note.kind for note in calm.notes] == [] and calm.window.step_seconds is None
    (note,) = hit.notes
    assert note.kind == "stall" and note.text.startswith("step 9 took 15") and "leaves that out" in note.text
    window = calm.window
    usual = (window.seconds or 0.0) / ((window.last_step or 0) - (window.first_step or 0) + 1)
    assert hit.window.step_seconds == pytest.approx(usual, rel=0.1)


def test_a_stall_of_the_newest_step_leaves_no_step_to_replay_and_the_verdict_stands() -> None:
    """A live job is looked at in just the round in which all of it went on after minutes."""
    timings = two_stages({1: (0.6, 0.6)})
    timings.phase_seconds[-1, 1, 1] += 150.0
    timings.waited_seconds[-1] += np.where(np.arange(8) == 1, 0.0, 150.0)
    timings.step_seconds[-1] += 150.0
    (culprit,) = locate(timings).culprits
    assert culprit.ranks == (1,) and 0.2 < (culprit.recoverable_ratio or 0.0) < 0.6


def test_long_steps_that_come_again_are_no_stalls() -> None:
    timings = job(8, 40, slow=[((1,), 0.5)])
    timings.step_seconds[::4] += 30.0
    timings.waited_seconds[::4] += 30.0
    assert "stall" not in [note.kind for note in locate(timings).notes]
