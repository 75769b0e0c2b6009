"""A job that stood still and was ended early: who stood in its own code while all others waited in a collective is the
culprit; where the stacks cannot decide, nobody is."""

from pathlib import Path
from typing import Any

import pytest
from support.flight_recorder import dump, entry, write_dumps
from support.standing import BARRIER, FETCH, SAVE, WAIT, recording, took

from laggard.cli import main
from laggard.model import Location, Verdict
from laggard.recording.judged import judge_recording
from laggard.stacks.sampled import HELD, STALLED, TERMINATED, Sampled, write


def judged(path: str) -> Location:
    return judge_recording([path]).location


def hung(location: Location) -> list[tuple[int, ...]]:
    return [it.ranks for it in location.culprits if it.kind == "hung"]


@pytest.mark.parametrize("in_folder", [False, True])
def test_who_stood_in_its_own_code_is_named_with_the_place(tmp_path: Path, in_folder: bool, capsys: Any) -> None:
    path = recording(tmp_path / "r", {0: [took(0, WAIT)], 1: [took(1, FETCH)], 2: [took(2, WAIT)]}, 0, in_folder)
    assert main(["locate", "--trace", path]) == 1
    text = capsys.readouterr().out
    assert text.startswith("Rank 1 on n1 is hung: the others wait for it."), text
    assert "In the code: fetch (data.py:41); ranks 0 and 2 in all_reduce, called in <module> (train.py:120)" in text
    assert "end is recorded" not in text
    location = judged(path)
    assert location.verdict is Verdict.FAIL and location.culprits[0].since_step == 12
    assert location.culprits[0].victims == (0, 2) and location.culprits[0].advice


@pytest.mark.parametrize(
    ("why", "stands"),
    [
        ("all wait", {0: [took(0, WAIT)], 1: [took(1, WAIT)], 2: [took(2, BARRIER)]}),
        ("nobody waits", {0: [took(0, FETCH)], 1: [took(1, FETCH)], 2: [took(2, SAVE)]}),
        ("most stand in their own code", {0: [took(0, FETCH)], 1: [took(1, SAVE)], 2: [took(2, WAIT)]}),
        ("one left no stack", {0: [took(0, WAIT)], 1: [took(1, FETCH)], 2: []}),
        ("SIGTERM found it elsewhere", {0: [took(0, WAIT)], 1: [took(1, FETCH), took(1, SAVE, TERMINATED, 50.0)]}),
        ("SIGTERM alone met it there", {0: [took(0, WAIT)], 1: [took(1, FETCH, TERMINATED)], 2: [took(2, WAIT)]}),
    ],
)  # fmt: skip
def test_where_stacks_cannot_decide_nobody_is(tmp_path: Path, why: str, stands: dict[int, list[Sampled]]) -> None:
    location = judged(recording(tmp_path / "r", stands))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN, why


def test_a_standstill_that_was_over_long_before_the_end_accuses_nobody(tmp_path: Path) -> None:
    stands = {0: [took(0, SAVE, at=0.9)], 1: [took(1, WAIT)], 2: [took(2, WAIT)]}
    assert not judged(recording(tmp_path / "r", stands)).culprits


def test_ranks_of_which_nothing_is_recorded_may_be_the_first(tmp_path: Path) -> None:
    location = judged(recording(tmp_path / "r", {0: [took(0, WAIT)], 1: [took(1, FETCH)]}, world=4))
    assert not location.culprits


def test_several_at_one_place_are_one_culprit_and_at_two_are_two(tmp_path: Path) -> None:
    stands = {rank: [took(rank, FETCH if rank < 2 else WAIT)] for rank in range(4)}
    assert hung(judged(recording(tmp_path / "one", stands))) == [(0, 1)]
    stands[1] = [took(1, SAVE)]
    assert hung(judged(recording(tmp_path / "two", stands))) == [(0,), (1,)]


def test_one_that_held_pythons_lock_is_named(tmp_path: Path) -> None:
    location = judged(recording(tmp_path / "r", {0: [took(0, WAIT)], 1: [took(1, FETCH, HELD)]}))
    assert hung(location) == [(1,)]


def test_the_folder_of_the_standstill_alone_names_it_too(tmp_path: Path) -> None:
    for rank, frames in enumerate((WAIT, FETCH, WAIT)):
        write(str(tmp_path / f"rank-{rank}.stacks"), took(rank, frames))
    location = judged(str(tmp_path))
    assert hung(location) == [(1,)] and location.culprits[0].stack is not None
    assert location.culprits[0].stack.place == "fetch (data.py:41)"


@pytest.mark.parametrize(("why", "at", "named"), [(HELD, 40.0, [(1,)]), (HELD, 8.0, []), (STALLED, 40.0, [])])
def test_beside_dumps_of_those_that_wait_only_one_that_is_held_is_named(
    tmp_path: Path, why: str, at: float, named: list[tuple[int, ...]]
) -> None:
    """Whoever could have written its dump and did not may have gone on from where its stack was taken; and so may one
    that was held before the others began to wait, at 9.0 s."""
    world = ("0", "default_pg", range(3))
    entries = [entry(world, "all_reduce", 1), entry(world, "all_reduce", 2, "scheduled")]
    write_dumps(tmp_path, {rank: dump([world], entries, {0: (2, 1)}) for rank in (0, 2)})
    for rank, frames in enumerate((WAIT, FETCH, WAIT)):
        write(str(tmp_path / f"rank-{rank}.stacks"), took(rank, frames, *((why, at) if rank == 1 else ())))
    location = judged(str(tmp_path))
    assert hung(location) == named
    told = location.culprits[0].stack if named else next(it for it in location.notes if it.kind == "stacks")
    assert "fetch (data.py:41)" in str(told)


def test_the_newest_standstill_counts_and_another_jobs_does_not(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", {0: [took(0, WAIT)], 1: [took(1, FETCH)]}, in_folder=True)
    older = tmp_path / "r" / "hang-20251126T000000Z"
    older.mkdir()
    write(str(older / "rank-0.stacks"), took(0, FETCH, at=99.0))
    assert hung(judged(path)) == [(1,)]
    other = tmp_path / "r" / "hang-20271126T000000Z"
    other.mkdir()
    write(str(other / "rank-0.stacks"), took(0, FETCH)._replace(job_id="another"))
    assert not judged(path).culprits
