"""What is held of a job beside its window: culprits that stay named, how noisy it is, and how fast it was itself."""

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec import structs
from support.timings import job
from support.timings import job as timings_of

from laggard.collector.incidents.fault_tracker import observation
from laggard.collector.jobs import held_verdicts
from laggard.collector.jobs.held_verdicts import HOLD_PAST_SECONDS, HOLD_SECONDS, OTHER_KIND_SECONDS, HeldCulprits
from laggard.collector.jobs.live_collectives import MAX_WINDOWS, NoiseHistory
from laggard.collector.jobs.own_past import DIGEST_SECONDS, FIRST_SECONDS, OwnPasts
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.locate.describe import sentence
from laggard.locate.job_timings import JobTimings
from laggard.locate.slow.host_facts import NOT_KNOWN
from laggard.locate.verdict import locate
from laggard.model import Culprit, JobKey, Location, Note, Verdict, Window

KEY = JobKey(1000, "job")
SLOW = [([5], 0.2)]


def _job(location: Location | None = None, running: bool = True, **options: Any) -> JobSnapshot:
    timings = timings_of(16, per_node=2, **options)
    return JobSnapshot(KEY, running, timings, location or locate(timings))


def _accused() -> JobSnapshot:
    found = _job(slow=SLOW)
    assert [culprit.ranks for culprit in found.location.culprits] == [(5,)]
    return found


def _nobody(job: JobSnapshot) -> JobSnapshot:
    """The same steps, with a verdict that names nobody."""
    last = int(job.timings.steps[-1])
    return dataclasses.replace(job, location=_ok(int(job.timings.steps[0]), last))


def _ok(first: int, last: int) -> Location:
    return Location(Verdict.OK, "job", 16, 16, Window(first, last, 6.0), 1.0, (), ())


def _after(accused: JobSnapshot, then: JobSnapshot, seconds: float = 5.0) -> JobSnapshot:
    holding = HeldCulprits()
    assert holding.held([accused], 100.0)[0].location == accused.location
    return holding.held([then], 100.0 + seconds)[0]


def test_a_culprit_that_the_next_verdict_misses_is_named_as_of_its_step() -> None:
    accused = _accused()
    found = _after(accused, _nobody(_job(slow=SLOW, first_step=5)))
    assert found.location.culprits == accused.location.culprits and found.location.verdict is Verdict.FAIL
    assert [note.text for note in found.location.notes if note.kind == "held"][0].startswith("as of step 21, 5 seconds")
    assert sentence(found.location).startswith("Rank 5 on n2 is slow")


def test_newer_steps_that_show_it_healthy_refute_it() -> None:
    assert not _after(_accused(), _nobody(_job(first_step=22, steps=60))).location.culprits
    assert _after(_accused(), _nobody(_job(slow=SLOW, first_step=22, steps=60))).location.culprits


def test_a_few_healthy_steps_refute_nothing() -> None:
    assert _after(_accused(), _nobody(_job(first_step=22, steps=10))).location.culprits


def test_it_is_held_for_a_bounded_time() -> None:
    later = _nobody(_job(slow=SLOW, first_step=5))
    assert not _after(_accused(), later, HOLD_SECONDS + 1).location.culprits
    holding, calls = HeldCulprits(), [100.0 + each for each in range(0, 121, 20)]
    holding.held([_accused()], calls[0])
    named = [bool(holding.held([later], now)[0].location.culprits) for now in calls[1:]]
    assert named == [True, True, True, False, False, False], "being held does not make it newer"


def test_who_was_accused_stays_so_while_a_doubt_is_left() -> None:
    later = _nobody(_job(slow=SLOW, first_step=5))
    doubt = Note("slow_in_few_steps", "rank 5 was slower than the others", ranks=(5,))
    doubted = structs.replace(later.location, verdict=Verdict.UNKNOWN, notes=(doubt,))
    holding = HeldCulprits()
    holding.held([_accused()], 100.0)
    rounds = [dataclasses.replace(later, location=doubted)] * 4 + [later] * 4
    told = [holding.held([each], 120.0 + 20.0 * number)[0].location for number, each in enumerate(rounds)]
    assert [bool(each.culprits) for each in told] == [*[True] * 7, False], "60 s after the last doubt"
    assert told[3].verdict is Verdict.FAIL and doubt in told[3].notes
    other = structs.replace(doubted, notes=(structs.replace(doubt, ranks=(7,)),))
    assert not _after(_accused(), dataclasses.replace(later, location=other), HOLD_SECONDS + 1).location.culprits


def test_a_culprit_without_ranks_is_held_for_as_long_as_others() -> None:
    """As a link whose ranks are not known: no doubt is of it."""
    accused = _accused()
    links = tuple(structs.replace(each, ranks=()) for each in accused.location.culprits)
    named = dataclasses.replace(accused, location=structs.replace(accused.location, culprits=links))
    later, holding = _nobody(_job(slow=SLOW, first_step=5)), HeldCulprits()
    holding.held([named], 100.0)
    with mock.patch.object(held_verdicts, "_is_refuted", return_value=False):
        told = [bool(holding.held([later], now)[0].location.culprits) for now in (130.0, 159.0, 190.0)]
    assert told == [True, True, False]


def test_nothing_is_held_for_a_job_that_ended_began_anew_or_whose_agents_are_silent() -> None:
    ended = dataclasses.replace(_nobody(_job(slow=SLOW, first_step=5)), running=False)
    anew = _nobody(_job(first_step=0, steps=15))
    silent = _job(unknown_location("no_agent", "no agent of this job answers", "job", 16, 16))
    for then in (ended, anew, silent):
        assert _after(_accused(), then).location == then.location


def _observed(*rounds: JobSnapshot) -> list[bool]:
    """Whether incidents are told of a culprit, round after round."""
    holding = HeldCulprits()
    told = [holding.held([each], 100.0 + 5.0 * number)[0] for number, each in enumerate(rounds)]
    assert all(each.location.culprits for each in told), "the verdict names it at once"
    return [bool(observation(each).culprits) for each in told]


def test_an_incident_is_told_of_a_culprit_that_other_steps_have_shown_too() -> None:
    accused = _accused()
    few, more = (_job(slow=SLOW, first_step=first) for first in (9, 10))  # 7 and 8 new ones
    assert _observed(accused, accused, few, more, more) == [False, False, False, True, True]
    assert not observation(HeldCulprits().held([accused], 100.0)[0]).conclusive, "nor that it is over"


def test_a_verdict_that_is_held_and_steps_without_it_open_no_incident() -> None:
    calm = _nobody(_job(first_step=22, steps=10))
    assert _observed(_accused(), calm, calm) == [False, False, False]


def test_a_job_that_is_gone_is_forgotten() -> None:
    holding, later = HeldCulprits(), _nobody(_job(slow=SLOW, first_step=5))
    holding.held([_accused()], 100.0)
    assert holding.held([], 101.0) == ()
    assert holding.held([later], 102.0)[0].location == later.location


def _of_kind(kind: str, phase: str = "forward", *evidence: str) -> JobSnapshot:
    found = _accused()
    (culprit,) = found.location.culprits
    named = structs.replace(culprit, kind=kind, phase=phase, evidence=(*evidence, f"evidence of {kind}"), advice=kind)
    return dataclasses.replace(found, location=structs.replace(found.location, culprits=(named,)))


def _told(*rounds: tuple[float, JobSnapshot]) -> list[str]:
    holding, told = HeldCulprits(), []
    for at, found in rounds:
        (culprit,) = holding.held([found], at)[0].location.culprits
        assert culprit.advice == culprit.kind
        assert culprit.kind != "slow_host" or "evidence of slow_host" in culprit.evidence
        told.append(culprit.kind)
    return told


@pytest.mark.parametrize("other", ["slow_compute", "slow_input"])
def test_a_kind_that_changes_from_verdict_to_verdict_is_told_as_it_was_first(other: str) -> None:
    kinds = ("slow_host", other) * 20
    assert set(_told(*((5.0 * at, _of_kind(kind)) for at, kind in enumerate(kinds)))) == {"slow_host"}


def test_another_kind_that_lasts_is_taken_over_once() -> None:
    rounds = [(5.0 * at, _of_kind("slow_host" if at else "slow_compute")) for at in range(12)]
    told = _told(*rounds)
    changed = 1 + round(OTHER_KIND_SECONDS / 5.0)
    assert told == ["slow_compute"] * changed + ["slow_host"] * (12 - changed)


def test_another_phase_or_what_was_not_known_is_told_at_once() -> None:
    assert _told((0.0, _of_kind("slow_compute")), (5.0, _of_kind("slow_input", "input"))) == [
        "slow_compute", "slow_input",
    ]  # fmt: skip
    assert _told((0.0, _of_kind("slow_compute", "forward", NOT_KNOWN)), (5.0, _of_kind("slow_host"))) == [
        "slow_compute", "slow_host",
    ]  # fmt: skip


def _slower_link(first_step: int, longer: float, own: float = 0.0, steps: int = 60) -> JobSnapshot:
    """A job whose steps are longer by `longer` seconds of waiting, from step 40 on, and by `own` of work."""
    timings = timings_of(16, per_node=2, first_step=first_step, steps=steps)
    since = timings.steps >= 40
    timings.waited_seconds[since] += longer
    timings.phase_seconds[since, :, 1] += own
    timings.step_seconds[since] += longer + own
    return JobSnapshot(KEY, True, timings, _ok(int(timings.steps[0]), int(timings.steps[-1])))


def _accused_link(longer: float) -> JobSnapshot:
    job = _slower_link(2, longer)
    step = float(np.median(job.timings.step_seconds[-10:]))
    culprit = Culprit("slow_link", (4, 5), recoverable_ratio=longer / step, since_step=40)
    location = structs.replace(job.location, verdict=Verdict.FAIL, culprits=(culprit,))
    return dataclasses.replace(job, location=location)


def test_a_link_that_became_slow_is_held_while_steps_stay_as_long() -> None:
    """What it was before is no longer in the window of steps: the new verdict cannot find it."""
    accused, later = _accused_link(0.2), _slower_link(100, 0.2)
    found = _after(accused, later, 600.0)
    assert [it.kind for it in found.location.culprits] == ["slow_link"] and found.location.verdict is Verdict.FAIL
    assert not _after(accused, later, HOLD_PAST_SECONDS + 1).location.culprits


def test_a_link_that_became_slow_is_over_when_steps_are_short_again_or_are_long_by_work() -> None:
    accused = _accused_link(0.2)
    assert not _after(accused, _slower_link(100, 0.0), 20.0).location.culprits
    assert not _after(accused, _slower_link(100, 0.0, own=0.2), 20.0).location.culprits


def test_a_link_that_was_always_slow_is_found_again_or_over() -> None:
    accused = _accused_link(0.2)
    (culprit,) = accused.location.culprits
    always = structs.replace(accused.location, culprits=(structs.replace(culprit, since_step=2),))
    later = _slower_link(100, 0.2)
    assert not _after(dataclasses.replace(accused, location=always), later, HOLD_SECONDS + 1).location.culprits


def window(first_step: int, ranks: int = 8, steps: int = 128) -> JobTimings:
    return job(ranks, steps, seed=first_step, first_step=first_step)


def test_windows_that_overlap_count_once_and_others_add_up() -> None:
    history = NoiseHistory()
    history.take(window(0))
    once = history.blocks
    history.take(window(64))
    assert history.blocks == once
    for number in range(1, 4):
        history.take(window(128 * number))
    lengths = [each.length for each in history.blocks]
    assert max(lengths) > 128, "how windows differ is known too"
    assert history.blocks[5].freedom > once[5].freedom


def test_other_ranks_and_another_run_begin_anew() -> None:
    history = NoiseHistory()
    for number in range(4):
        history.take(window(128 * number))
    longest = max(each.length for each in history.blocks)
    history.take(window(1024, ranks=4))
    assert max(each.length for each in history.blocks) < longest
    history.take(window(0, ranks=4))
    assert max(each.length for each in history.blocks) < longest


def test_a_long_job_is_bounded_and_what_has_no_steps_is_passed_over() -> None:
    history = NoiseHistory()
    history.take(window(0, steps=4))
    history.take(window(0, ranks=1))
    assert history.blocks == ()
    for number in range(3 * MAX_WINDOWS):
        history.take(window(128 * number))
    assert max(each.length for each in history.blocks) <= 128 * MAX_WINDOWS


def test_two_ranks_of_a_live_job_are_told_apart_by_what_was_before() -> None:
    """Two ranks in much noise, of which one becomes slower: a window alone does not say whether noise lasts as long."""
    history = NoiseHistory()
    for number in range(12):
        history.take(noisy(128 * number, since=None))
    now = noisy(128 * 12, since=104)
    assert not locate(now).culprits
    (culprit,) = locate(dataclasses.replace(now, earlier_noise=history.blocks)).culprits
    assert culprit.ranks == (1,)


def noisy(first_step: int, since: int | None) -> JobTimings:
    made = job(2, 128, seed=first_step, first_step=first_step, live=True)
    made.phase_seconds[:] *= np.random.default_rng(first_step).normal(1, 0.02, (128, 2))[:, :, None]
    if since is not None:
        made.phase_seconds[since:, 1, 1] += 0.03
    return made


def snapshot(started: float = 1.0, name: str = "train", **options: Any) -> JobSnapshot:
    options.setdefault("seed", 1)
    location = structs.replace(unknown_location("", "", name), verdict=Verdict.OK, notes=())
    timings = job(ranks=8, steps=40, **options)
    return JobSnapshot(JobKey(1000, name), True, timings, location, started_at=started)


def look(pasts: OwnPasts, now: float, *jobs: JobSnapshot) -> Any:
    due = [(each, {"healthy": True}) for each in pasts.due(jobs, now)]
    made = pasts.make(due, now, 1e9 + now)
    return made, pasts.noted(jobs)


def after_the_first_hour(pasts: OwnPasts) -> float:
    now = 0.0
    while now < FIRST_SECONDS:
        look(pasts, now, snapshot(seed=int(now)))
        now += DIGEST_SECONDS
    return now


def test_a_job_that_became_slower_in_all_ranks_gets_a_note_and_stays_ok() -> None:
    pasts = OwnPasts()
    now = after_the_first_hour(pasts)
    slow = snapshot(slow=[(range(8), 0.1)], seed=99)
    for minute in range(3):
        _, (found,) = look(pasts, now + minute * DIGEST_SECONDS, slow)
        notes = [note.text for note in found.location.notes]
        assert bool(notes) == (minute > 0), "one digest alone may be noise"
    assert notes[0].startswith("forward takes 3") and notes[0].endswith(
        "% longer than in this job's first hour, in all ranks"
    )
    assert found.location.verdict is Verdict.OK and not found.location.culprits
    assert found.first_hour_ratio is not None and 1.05 < found.first_hour_ratio < 1.15


def test_a_steady_job_and_one_slow_rank_get_none() -> None:
    pasts = OwnPasts()
    now = after_the_first_hour(pasts)
    for minute in range(8):
        jobs = snapshot(seed=200 + minute), snapshot(seed=300 + minute, slow=[([3], 0.3)])
        _, (found,) = look(pasts, now + minute * DIGEST_SECONDS, jobs[minute // 4])
        assert not found.location.notes


def test_the_first_hour_is_told_once_made_and_another_run_begins_anew() -> None:
    pasts = OwnPasts()
    made, _ = look(pasts, 0.0, snapshot())
    assert [each.is_first for each in made] == [True] and pasts.first(JobKey(1000, "train")) is made[0].digest
    assert look(pasts, DIGEST_SECONDS / 2, snapshot())[0] == [], "one a minute is enough"
    made, _ = look(pasts, FIRST_SECONDS * 2, snapshot(started=7.0, slow=[(range(8), 0.3)]))
    assert [each.is_first for each in made] == [True]
    assert look(pasts, FIRST_SECONDS * 3)[0] == [] and pasts.first(JobKey(1000, "train")) is None


def test_a_round_makes_a_few_digests_and_comes_to_every_job() -> None:
    pasts = OwnPasts()
    jobs = [snapshot(name=f"job-{number}") for number in range(10)]
    seen = [made.key for now in (0.0, 5.0, 10.0) for made in look(pasts, now, *jobs)[0]]
    assert len(seen) == 10 and set(seen) == {each.key for each in jobs}
