"""Culprits of live jobs are held until newer steps refute them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.timings import job as timings_of

from laggard.collector.incidents.fault_tracker import observation
from laggard.collector.jobs.held_verdicts import HOLD_PAST_SECONDS, HOLD_SECONDS, OTHER_KIND_SECONDS, HeldCulprits
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.locate.describe import sentence
from laggard.locate.slow.host_facts import NOT_KNOWN
from laggard.locate.verdict import locate
from laggard.model import Culprit, JobKey, Location, Verdict, Window

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
