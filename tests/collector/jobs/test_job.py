"""A job as a collector keeps it: its last steps, its layout for as long as it holds, and its names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.rows import rows
from support.steps import StepRow, step_rows, step_table
from support.timings import job as timings_of

from laggard.collector.jobs.job import KeptLayout, StepWindow
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS
from laggard.locate.positions import LiveLayout
from laggard.locate.verdict import locate
from laggard.model import JobKey
from laggard.rankfile.fact_names import GROUPS, member_runs
from laggard.wire.ranks import RankRow

Batch = Sequence[StepRow]
LENGTHS = (0.01, 0.1, 0.3)


def _row(number: int, seconds: float, work: int) -> StepRow:
    """A step of a job whose steps all take `seconds`; `work` tells apart what is sent twice."""
    return StepRow(number, number * seconds, (number + 1) * seconds, (0.0,) * len(PHASES), 0.0, work)


@st.composite
def _batches(draw: st.DrawFn) -> list[Batch]:
    """What an agent sends: most often some of the newest steps, in order, now and then anything."""
    seconds, batches, newest = draw(st.sampled_from(LENGTHS)), [], 0
    for work in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 3)):
            begin = max(0, newest - draw(st.integers(-3, 12)))
            numbers = list(range(begin, begin + draw(st.integers(0, 200))))
        else:
            numbers = draw(st.lists(st.integers(0, newest + 20), max_size=20))
        batches.append([_row(number, seconds, work) for number in numbers])
        newest = max([newest, *numbers])
    return batches


def _kept(book: dict[int, StepRow], most: int) -> list[StepRow]:
    """Those of the steps that a window is to hold, at most `most` or else WINDOW_STEPS of them."""
    rows = [book[number] for number in sorted(book)]
    since = rows[-1].end - WINDOW_SECONDS if rows else 0.0
    recent = next((place for place, row in enumerate(rows) if row.start >= since), 0)
    count = max(WINDOW_STEPS, min(most, len(rows) - recent))
    return rows[-count:]


@settings(max_examples=200, deadline=None)
@given(_batches(), st.sampled_from((WINDOW_STEPS, 1365)))
def test_a_window_holds_what_a_book_of_all_steps_would(batches: list[Batch], most: int) -> None:
    window, book, given_out = StepWindow(), dict[int, StepRow](), list[tuple[np.ndarray, np.ndarray]]()
    for batch in batches:
        last = max(book, default=-1)
        for row in batch:
            book.setdefault(row.step, row)
        assert window.add(step_table(batch), most) == (max(book, default=-1) > last)
        book = {row.step: row for row in _kept(book, most)}
        assert list(step_rows(window.table)) == list(book.values())
        given_out.append((window.table, window.table.copy()))
    assert all(np.array_equal(table, as_given) for table, as_given in given_out), "a reader's table stays as it is"


def test_steps_that_are_numbered_anew_later_are_another_runs() -> None:
    window = StepWindow()
    assert not window.restarted(step_table([_row(5, 1.0, 0)])), "nothing was held"
    window.add(step_table([_row(number, 1.0, 0) for number in range(5, 9)]))
    again = StepRow(0, 100.0, 101.0, (0.0,) * len(PHASES), 0.0)
    assert window.restarted(step_table([_row(9, 1.0, 0), again]))
    assert not window.restarted(step_table([_row(number, 1.0, 0) for number in (7, 6, 8, 12)]))


def _rows(make: Any, stages: Mapping[int, int], facts: Mapping[str, Any] | None = None) -> dict[int, RankRow]:
    """Ranks by the stage of a pipeline that each is in."""
    return {
        rank: make.rank_row(rank, 8, facts={**(facts or {}), GROUPS: _groups(stage)}) for rank, stage in stages.items()
    }


def _groups(stage: int) -> dict[str, Any]:
    """Stage and replica of a rank are where it is in groups of four."""
    return {"dp:x": member_runs(range(4 * stage, 4 * stage + 4)), "pp:x": member_runs(range(8))}


STAGES = {rank: rank // 4 for rank in range(8)}


def _is_as_made_anew(layout: LiveLayout, rows: Mapping[int, RankRow]) -> bool:
    kept, made = layout.positions, LiveLayout(rows).positions
    assert made.positions is not None and made.positions.max() > 0
    return [None if each is None else each.tolist() for each in kept] == [
        None if each is None else each.tolist() for each in made
    ]


def test_a_layout_is_kept_while_the_ranks_tell_the_same_groups(make: Any) -> None:
    kept = KeptLayout()
    first = kept.of(_rows(make, STAGES, {"busy_seconds": 1.0}))
    later = {rank: structs.replace(row, steps=99) for rank, row in _rows(make, STAGES, {"busy_seconds": 2.0}).items()}
    assert kept.of(later) is first and _is_as_made_anew(first, later)


@pytest.mark.parametrize("ranks", [range(7), range(9)])
def test_a_rank_that_comes_or_goes_changes_it(make: Any, ranks: range) -> None:
    kept = KeptLayout()
    first = kept.of(_rows(make, STAGES))
    rows = _rows(make, {rank: rank // 4 for rank in ranks if rank < 8})
    rows |= {8: make.rank_row(8, 9)} if 8 in ranks else {}
    assert kept.of(rows) is not first and _is_as_made_anew(kept.of(rows), rows)


@rows("collector/other_groups")
def test_a_rank_that_tells_of_other_groups_changes_it(make: Any, groups: Any) -> None:
    rows, kept = _rows(make, STAGES), KeptLayout()
    first = kept.of(rows)
    changed = {**rows, 0: structs.replace(rows[0], facts={GROUPS: groups})}
    assert kept.of(changed) is not first and _is_as_made_anew(kept.of(changed), changed)
    assert _is_as_made_anew(kept.of(rows), rows)


def test_groups_that_are_nested_as_deeply_as_can_be_keep_nothing(make: Any) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    rows = _rows(make, STAGES)
    rows[0] = structs.replace(rows[0], facts={GROUPS: {"pp:x": nested}})
    kept = KeptLayout()
    assert kept.of(rows) is not kept.of(rows)


ONE, OTHER = "e75a69af-ff7e-41d6-958e-23a6d3593d8b", "e75a6000-ff7e-41d6-958e-23a6d3593d8b"


@pytest.fixture(scope="module")
def cluster() -> ClusterSnapshot:
    timings = timings_of(4)
    location = locate(timings)

    def one(job_id: str, script: str, owner: int = 1000) -> JobSnapshot:
        return JobSnapshot(JobKey(owner, job_id), True, timings, location, script=script)

    jobs = (one(ONE, "train.py"), one(OTHER, "eval.py"), one("4711", "named.py"), one("nightly-2", "named.py"))
    return ClusterSnapshot(nodes=(), jobs=(*jobs, one("job-d2a29fed3bf2", "train.py", owner=1001)))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (ONE, ONE),
        ("e75a69", ONE),
        ("1000:e75a69af", ONE),
        ("eval.py", OTHER),
        ("1001:train.py", "job-d2a29fed3bf2"),
        ("job-d2a29f", "job-d2a29fed3bf2"),
        ("4711", "4711"),
        ("e75a6", None),  # too short, as a commit's
        ("e75a60ff", None),
        ("named.py", None),  # somebody gave these jobs names
        ("471", None),
        ("nightly", None),
        ("1001:e75a69af", None),  # another user's
    ],
)
def test_a_job_by_what_people_write(cluster: ClusterSnapshot, asked: str, found: str | None) -> None:
    job = cluster.job(asked)
    assert (job.key.job_id if job else None) == found and not cluster.ambiguity(asked)


def test_what_several_jobs_are_called_is_refused_with_the_choices(cluster: ClusterSnapshot) -> None:
    assert cluster.job("train.py") is None
    choices = f"1000:{ONE}, 1001:job-d2a29fed3bf2"
    assert cluster.ambiguity("train.py") == f"2 jobs are called so, train.py; ask for one of them: {choices}"


def test_where_there_is_no_such_job_the_scripts_are_told(cluster: ClusterSnapshot) -> None:
    (note,) = cluster.location("x").notes
    assert note.text.startswith(f"no job x is known; known: 1000:{ONE} (train.py), 1000:{OTHER} (eval.py), 1000:4711,")
