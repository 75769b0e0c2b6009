"""Who hung before a job was killed, by where its ranks stood as their recordings tell it last: the pure
part, with every number chosen."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timings import of_states

from laggard.locate.hang.deaths import dead_ranks
from laggard.locate.hang.hangs import hung_before_the_end
from laggard.locate.job_timings import JobTimings, LastBeat, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress

STEP = 0.1
DP = "dp:0-3"


def stands(quiet: float, entered: int, inside: bool = True, world: int = -1) -> LastBeat:
    """A rank that has finished no step for `quiet` seconds, entered so many all_reduces, and is inside the last, or is
    not. `world`: what torch's Flight Recorder tells instead: the number of the world's collective that it waits in."""
    lanes = (LaneProgress("all_reduce", DP, entered, entered - inside),) if world < 0 else ()
    flight = InFlight("all_reduce", DP, entered, quiet) if inside and world < 0 else None
    groups = (GroupProgress("#0", world, -1, world - 1, quiet),) if world >= 0 else ()
    beat = BeatRow(0.0, min(max(1.0, quiet / 2), 5.0), "on", lanes, groups, 0.0 if groups else None)
    return LastBeat(quiet, "backward", flight, beat)


def says_nothing(entered: int) -> LastBeat:
    """A rank that told nothing after its last step."""
    lanes = (LaneProgress("all_reduce", DP, entered, entered),)
    return LastBeat(0.0, None, None, BeatRow(0.0, 1.0, "absent", lanes, ()))


def timings(beats: Sequence[LastBeat | None]) -> JobTimings:
    return of_states([RankState("died", 7, None, None)] * len(beats), last_beats=tuple(beats))


def named(found: PartialVerdict) -> list[tuple[int, ...]]:
    return [culprit.ranks for culprit in found.culprits]


def test_the_rank_that_fell_silent_is_named_by_collectives_of_python_and_of_the_world() -> None:
    for world in (-1, 41):
        waiting = [stands(9.0, 20, world=world) for _ in range(3)]
        found = hung_before_the_end(timings([*waiting[:1], says_nothing(19), *waiting[1:]]), STEP)
        assert named(found) == [(1,)] and found.culprits[0].silent
        assert "at least 8.00 s before the others'" in found.culprits[0].evidence[0]


def test_a_rank_that_still_told_where_it_stood_is_late_and_not_silent() -> None:
    late = stands(9.0, 19, inside=False)
    found = hung_before_the_end(timings([stands(9.0, 20), stands(9.0, 20), late]), STEP)
    assert not found.culprits
    assert [note.ranks for note in found.notes if note.kind == "not_arrived"] == [(2,)]


def test_a_rank_that_was_waited_for_for_long_when_the_job_was_ended_hung_in_its_own_code() -> None:
    def found(quiet: float, phase: str, step: float = STEP) -> PartialVerdict:
        late = stands(quiet, 19, inside=False)._replace(phase=phase)
        return hung_before_the_end(timings([stands(quiet, 20), stands(quiet, 20), late]), step)

    assert named(found(21.0, "forward")) == [(2,)]
    assert not found(19.0, "forward").culprits, "it may only be late"
    assert not found(59.0, "").culprits and named(found(61.0, "")) == [(2,)], "what it does is not known"
    assert not found(61.0, "checkpoint").culprits, "one rank may save for minutes"
    assert named(found(181.0, "checkpoint")) == [(2,)]
    assert not found(61.0, "forward", step=4.0).culprits, "twenty steps are longer"


@pytest.mark.parametrize(("waits", "is_named"), [((30.0, 30.0), False), ((30.0, 0.5), True), ((10.0, 10.0), True)])
def test_a_wait_that_came_and_passed_twice_is_usual(waits: tuple[float, float], is_named: bool) -> None:
    """Rank 2 loads its input anew now and then; the job is killed 25 s into the next time."""
    beats = [stands(25.0, 20), stands(25.0, 20), stands(25.0, 19, inside=False)._replace(phase="input")]
    job = timings(beats)
    waited = np.full((8, 3), 0.01)
    waited[[2, 5], :2] = np.array(waits)[:, None]
    steps = dataclasses.replace(job, steps=np.arange(8), waited_seconds=waited, step_seconds=waited + 0.1)
    assert named(hung_before_the_end(steps, STEP)) == ([(2,)] if is_named else [])


def test_a_rank_whose_gpu_does_not_complete_what_all_others_have_is_named() -> None:
    def found(quiet: float, *numbers: int) -> PartialVerdict:
        """Hosts run ahead: each has entered two collectives more than it waits for."""
        beats = []
        for number in numbers:
            flight = InFlight("all_reduce", DP, number, quiet)
            beat = BeatRow(0.0, 5.0, "on", (LaneProgress("all_reduce", DP, 22, number - 1),), ())
            beats.append(LastBeat(quiet, "forward", flight, beat))
        return hung_before_the_end(timings(beats), STEP)

    (culprit,) = found(87.0, 20, 20, 19, 20).culprits
    assert culprit.ranks == (2,) and culprit.device_stopped
    assert culprit.evidence == (
        "its GPU has not completed all_reduce of dp:0-3, number 19, for 87 s; those of all others have",
    )
    assert not found(18.0, 20, 20, 19, 20).culprits
    assert [note.kind for note in found(18.0, 20, 20, 19, 20).notes][0] == "not_completed"
    for alike in ((20, 20, 20, 20), (19, 19, 20, 20), (18, 19, 20, 20)):
        assert bool(found(87.0, *alike).culprits) == (alike[0] == 18), alike


def test_who_came_to_the_collective_and_was_stopped_in_it_is_named() -> None:
    stopped = stands(2.0, 20)
    assert named(hung_before_the_end(timings([stands(18.0, 20), stopped, stands(18.0, 20)]), STEP)) == [(1,)]


def test_who_only_waited_is_not_named_where_another_rank_was_never_seen() -> None:
    """Rank 1 was cut off a moment before the others, within the collective in which all waited for rank 3."""
    seen = timings([stands(18.0, 20), stands(2.0, 20), stands(18.0, 20)])
    found = hung_before_the_end(dataclasses.replace(seen, world_size=4), STEP)
    assert not found.culprits and [note.kind for note in found.notes] == ["waiting"]
    silent = timings([stands(18.0, 20), says_nothing(19), stands(18.0, 20)])
    assert named(hung_before_the_end(dataclasses.replace(silent, world_size=4), STEP)) == [(1,)]


def test_who_started_late_is_not_named_for_it_in_the_first_step() -> None:
    beats = timings([stands(60.0, 1), stands(20.0, 1), stands(60.0, 1)])
    before_any_step = tuple(state._replace(step=None) for state in beats.states)
    found = hung_before_the_end(dataclasses.replace(beats, states=before_any_step), None)
    assert not found.culprits and [note.kind for note in found.notes] == ["waiting"]


def test_recordings_of_older_hooks_and_live_jobs_are_left_alone() -> None:
    assert hung_before_the_end(timings([]), STEP) == NOTHING_FOUND
    assert hung_before_the_end(timings([stands(9.0, 20), None]), STEP).culprits == ()
    live = dataclasses.replace(timings([stands(9.0, 20), says_nothing(19)]), live=True)
    assert hung_before_the_end(live, STEP) == NOTHING_FOUND


@given(
    st.lists(st.floats(0.0, 60.0), min_size=2, max_size=8),
    st.floats(0.001, 10.0),
    st.integers(0, 100),
)
def test_a_job_that_is_killed_within_a_step_accuses_nobody(quiet: list[float], step: float, entered: int) -> None:
    """Ranks that all finished their last step no longer than two steps ago, wherever they stand."""
    beats = [
        stands(share, entered + 1) if share >= 1.0 else says_nothing(entered)
        for share in (seconds / 60.0 * 2 * step for seconds in quiet)
    ]
    assert not hung_before_the_end(timings(beats), step).culprits


@given(st.integers(2, 8), st.data(), st.floats(0.001, 10.0), st.floats(0.0, 3.0))
def test_who_fell_silent_is_named_whatever_the_number_of_ranks(
    ranks: int, data: st.DataObject, step: float, skew: float
) -> None:
    """The others waited for six seconds and four steps, and finished their last steps within a step of each other."""
    victim = data.draw(st.integers(0, ranks - 1))
    waits = 6.0 + 4 * step
    beats = [stands(waits + min(skew, step) * rank / ranks, 20) for rank in range(ranks)]
    beats[victim] = says_nothing(19)
    assert named(hung_before_the_end(timings(beats), step)) == [(victim,)]


def launched(started: int, completed: int, *lanes: LaneProgress, seconds: float = 90.0) -> LastBeat:
    """A rank whose host stands in its last all_reduce, and whose GPU has begun and completed so many of the world's
    collectives."""
    own = lanes or (LaneProgress("all_reduce", DP, 20, 18),)
    groups = (GroupProgress("#0", 20, started, completed, seconds),)
    beat = BeatRow(0.0, 5.0, "on", own, groups, 0.0)
    return LastBeat(seconds, "backward", InFlight("all_reduce", DP, 20, seconds), beat)


def test_the_rank_whose_gpu_alone_has_not_begun_what_all_others_stand_in_is_named() -> None:
    others = [launched(18, 17) for _ in range(3)]
    found = hung_before_the_end(timings([*others[:2], launched(17, 17), *others[2:]]), STEP)
    (culprit,) = found.culprits
    assert culprit.ranks == (2,) and culprit.device_stopped
    assert culprit.evidence == (
        "its GPU has not begun a collective of the world that C++ made, as DDP's, number 18, for 90 s; those of all "
        "others have",
    )


def test_of_two_begun_collectives_the_first_that_a_gpu_has_not_begun_counts() -> None:
    """FSDP gathers the next parameters and reduces the last gradients on two streams of one group."""
    begun = launched(19, 17)
    (culprit,) = hung_before_the_end(timings([begun, begun, launched(17, 17), begun]), STEP).culprits
    assert culprit.ranks == (2,) and culprit.device_stopped
    assert not hung_before_the_end(timings([begun, begun, launched(17, 16), begun]), STEP).culprits


def test_gpus_that_tell_nothing_of_begins_accuse_nobody() -> None:
    """Without TORCH_NCCL_ENABLE_TIMING torch does not know which collectives began."""
    silent = [launched(-1, 17) for _ in range(4)]
    assert not hung_before_the_end(timings(silent), STEP).culprits
    assert not hung_before_the_end(timings([*silent[:3], launched(17, 17)]), STEP).culprits


def test_two_gpus_that_have_not_begun_or_a_wait_in_another_group_accuse_nobody() -> None:
    begun, not_begun = launched(18, 17), launched(17, 17)
    assert not hung_before_the_end(timings([begun, begun, not_begun, not_begun]), STEP).culprits
    both = LaneProgress("all_reduce", DP, 20, 18), LaneProgress("all_gather", "tp:2-3", 9, 8)
    elsewhere = launched(17, 17, *both)
    assert not hung_before_the_end(timings([begun, begun, elsewhere, begun]), STEP).culprits


def test_a_silent_rank_whose_peers_were_killed_later_hung_though_the_others_finished() -> None:
    """As where groups meet rarely: the others go on, and end in order."""
    waiting, silent = stands(87.0, 20), says_nothing(19)
    died = [waiting, silent, waiting, waiting]
    whole = timings([*died, None, None])
    finished = RankState("finished", 8, None, None)
    job = dataclasses.replace(whole, states=(*whole.states[:4], finished, finished))
    assert dead_ranks(job) == NOTHING_FOUND
    assert named(hung_before_the_end(job, STEP)) == [(1,)]
    in_code = dataclasses.replace(
        job, last_beats=(waiting, stands(87.0, 19, inside=False), waiting, waiting, None, None)
    )
    assert dead_ranks(in_code) == NOTHING_FOUND and named(hung_before_the_end(in_code, STEP)) == [(1,)]
    at_once = dataclasses.replace(job, last_beats=(*(stands(1.0, 20) for _ in died), None, None))
    assert dead_ranks(at_once) != NOTHING_FOUND, "all that said so little went down together"
