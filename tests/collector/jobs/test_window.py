"""Job windows: duplicates, bounds, restarts, claims and expiry."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.collectors import ingest
from support.rows import rows
from support.steps import StepRow, step_rows

from laggard.collector.jobs.holdings import MAX_JOBS_OF_AGENT, MAX_RANKS_OF_AGENT, Limits
from laggard.collector.jobs.job import Run
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.window import CLAIM_SECONDS, JobWindows, Refusal
from laggard.kit.constants import PHASES
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS
from laggard.locate.verdict import locate
from laggard.model import JobKey, Location
from laggard.wire.nodes import NodeRow

KEY = JobKey(1000, "job-1")


def _steps(windows: JobWindows, rank: int = 0) -> list[int]:
    return [row.step for row in step_rows(windows.jobs[KEY].ranks[rank].table)]


@given(st.lists(st.lists(st.integers(0, 400), max_size=40), max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_is_repeated_or_reordered_the_newest_steps_are_kept_once(make: Any, batches: list[list[int]]) -> None:
    windows = JobWindows()
    for now, batch in enumerate(batches):
        rows = [make.step_row(step) for step in batch]
        ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, rows=rows)]), float(now))
    ingested = sorted({step for batch in batches for step in batch})
    if batches:
        kept = _steps(windows)
        assert kept == sorted(set(kept)) and len(kept) <= WINDOW_STEPS
        assert kept == ingested[-WINDOW_STEPS:]


def test_progress_is_a_step_that_was_not_known(make: Any) -> None:
    windows = JobWindows()
    for now, steps in ((1.0, (0, 1)), (2.0, (0, 1)), (3.0, (1, 2))):
        document = make.ranks_document("n0", [make.rank_row(0, rows=[make.step_row(step) for step in steps])])
        ingest(windows, "a", document, now)
        assert windows.jobs[KEY].progressed_at == (3.0 if now == 3.0 else 1.0)


def test_a_higher_attempt_starts_the_job_anew_and_a_lower_one_is_ignored(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0, 1]), 1.0)
    again = make.ranks_document("n0", [make.rank_row(0, 2, [make.step_row(3)], attempt=1)])
    assert not ingest(windows, "a", again, 2.0)
    assert set(windows.jobs[KEY].ranks) == {0} and _steps(windows) == [3]
    assert ingest(windows, "b", make.node("n1", [2, 3]), 3.0) == {Refusal.OTHER_RUN: 2}
    assert set(windows.jobs[KEY].ranks) == {0}


def test_another_run_under_the_same_name_starts_anew(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0, 1]), 1.0)
    later = StepRow(0, 900.0, 900.3, (0.1,) * len(PHASES), 0.0)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(1, rows=[later])]), 2.0)
    assert set(windows.jobs[KEY].ranks) == {1} and _steps(windows, 1) == [0]


def test_the_file_of_a_process_that_is_over_does_not_win_over_the_running_one(make: Any) -> None:
    windows = JobWindows()
    over = make.rank_row(0, rows=[make.step_row(5)], state="died", last_progress_timestamp_seconds=9e9)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, rows=[make.step_row(1)]), over]), 1.0)
    assert windows.jobs[KEY].ranks[0].newest.state == "running" and _steps(windows) == [1]


def test_the_first_agent_to_report_a_rank_keeps_it_while_it_goes_on(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0]), 1.0)
    assert ingest(windows, "b", make.node("n9", [0]), 2.0) == {Refusal.CLAIMED: 1}
    assert windows.jobs[KEY].ranks[0].newest.node == "n0"
    assert not ingest(windows, "b", make.node("n9", [0]), 2.0 + CLAIM_SECONDS)
    assert windows.jobs[KEY].ranks[0].newest.node == "n9"


def _located(windows: JobWindows, *urls: str) -> Location:
    rows = tuple(NodeRow(url, url, "up", "", 0.0, "ok", (), ()) for url in urls)
    (job,) = build_snapshot(windows, ClusterSnapshot(rows), locate).jobs
    return job.location


@pytest.mark.parametrize("liar_first", [True, False])
def test_no_verdict_rests_on_a_rank_that_two_machines_report(make: Any, liar_first: bool) -> None:
    """An agent says that another machine's ranks run on its own, and slowly: nobody is accused for that, and the rank
    that is slow is named as ever, whichever of them was asked first."""
    windows = JobWindows()
    honest = {f"n{node}": make.node(f"n{node}", [2 * node, 2 * node + 1], slow=5, world_size=8) for node in range(4)}
    lie = make.node("n9", [0, 1], slow=0, world_size=8)
    answers = [("n9", lie), *honest.items()] if liar_first else [*honest.items(), ("n9", lie)]
    for begin in (0.0, 500.0):
        for late, (name, document) in enumerate(answers):
            ingest(windows, name, document, begin + 100.0 * late)
    found = _located(windows, "n9", *honest)
    assert [culprit.ranks for culprit in found.culprits] == [(5,)]
    (note,) = [note for note in found.notes if note.kind == "contested"]
    assert note.ranks == (0, 1) and "more than one machine (n0 and n9)" in note.text


def test_the_same_agent_at_two_addresses_contests_nothing(make: Any) -> None:
    windows = JobWindows()
    for address in ("a", "b"):
        ingest(windows, address, make.node("n0", [0, 1], slow=1, world_size=2), 1.0)
    assert windows.jobs[KEY].contested == {}


def test_a_rank_is_believed_again_once_one_machine_alone_reports_it(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0]), 1.0)
    ingest(windows, "b", make.node("n9", [0]), 2.0)
    for now in (100.0, 200.0):  # however long a round takes
        assert set(windows.jobs[KEY].contested) == {0}
        ingest(windows, "a", make.node("n0", [0]), now)
    assert windows.jobs[KEY].contested == {}


def test_the_file_of_a_rank_that_moved_contests_nothing(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "b", make.node("n9", [0]), 1.0)
    ingest(windows, "a", make.node("n0", [0], state="died"), 2.0)
    assert windows.jobs[KEY].contested == {}


def test_two_owners_with_one_job_name_stay_apart(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0], owner=1000), 1.0)
    ingest(windows, "b", make.node("n1", [0], owner=1001), 1.0)
    assert set(windows.jobs) == {KEY, JobKey(1001, "job-1")}


def test_ended_jobs_expire_and_are_not_brought_back_by_their_files(make: Any) -> None:
    windows = JobWindows(expire_after_seconds=900)
    ingest(windows, "a", make.node("n0", [0], state="finished"), 0.0)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, state="finished")]), 850.0)
    windows.expire(899.0)
    assert KEY in windows.jobs
    windows.expire(901.0)
    assert not windows.jobs
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, state="finished")]), 902.0)
    assert not windows.jobs


def test_a_job_is_kept_from_its_end_on_and_not_from_its_last_step(make: Any) -> None:
    """It hung for longer than an ended job is kept, until its ranks were killed: who died is still to be told."""
    windows = JobWindows(expire_after_seconds=900)
    ingest(windows, "a", make.node("n0", [0]), 0.0)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0)]), 1800.0)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, state="died")]), 1805.0)
    windows.expire(1805.0)
    assert not windows.jobs[KEY].running
    windows.expire(2699.0)
    assert KEY in windows.jobs
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, state="died")]), 2701.0)
    windows.expire(2701.0)
    assert not windows.jobs


@pytest.mark.parametrize(("since", "is_told"), [(60.0, True), (4000.0, False)])
def test_a_new_collector_tells_of_a_job_that_ended_just_now_and_not_of_an_older_one(
    make: Any, since: float, is_told: bool
) -> None:
    """The file of a rank that ended stays for hours, and to a new collector its steps are all new."""
    windows = JobWindows(expire_after_seconds=900)
    last = make.rank_row(0).last_progress_timestamp_seconds + 60
    ingest(windows, "a", structs.replace(make.node("n0", [0, 1], state="died"), now=last + since), 0.0)
    windows.expire(0.0)
    assert (KEY in windows.jobs) is is_told
    windows.expire(900.0 - 60.0 + 1.0)
    assert not windows.jobs


def test_a_running_job_expires_only_when_no_agent_reports_it(make: Any) -> None:
    windows = JobWindows(expire_after_seconds=900)
    ingest(windows, "a", make.node("n0", [0]), 0.0)
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0)]), 850.0)  # hung: listed, no new steps
    windows.expire(1700.0)
    assert KEY in windows.jobs
    windows.expire(1751.0)
    assert not windows.jobs


@pytest.mark.parametrize("state", ["finished", "died"])
def test_a_rank_that_ended_keeps_no_job_of_which_a_machine_is_lost(make: Any, state: str) -> None:
    """The last word of n1 was that its ranks run, and n0 goes on telling of those that ended there."""
    windows = JobWindows(expire_after_seconds=900)
    last = make.rank_row(0).last_progress_timestamp_seconds

    def told(now: float) -> None:
        rows = [make.rank_row(rank, state=state) for rank in (0, 1)]
        ingest(windows, "a", make.ranks_document("n0", rows, now=last + now), now)
        windows.expire(now)

    ingest(windows, "a", make.node("n0", [0, 1]), 0.0)
    ingest(windows, "b", make.node("n1", [2, 3]), 100.0)
    told(999.0)
    assert windows.jobs[KEY].running and set(windows.jobs[KEY].ranks) == {0, 1, 2, 3}
    told(1001.0)
    assert not windows.jobs
    told(1002.0)
    assert not windows.jobs


@rows("collector/answered_rounds")
def test_whether_a_job_is_told_of_in_a_round(make: Any, answers: dict[str, str], running: bool, told: bool) -> None:
    """`answers`: of the agents that answer in the second round, the state of their ranks; empty: they have none."""
    windows = JobWindows()
    for source, rank in (("a", 0), ("b", 1)):
        ingest(windows, source, make.node(source, [rank], world_size=2), 5.0)
    for source, rank in (("a", 0), ("b", 1)):
        if source in answers:
            ranks = [make.rank_row(rank, 2, node=source, state=answers[source])] if answers[source] else []
            ingest(windows, source, make.ranks_document(source, ranks), 11.0)
    rows = (NodeRow(source, source, "up", "", 0.0, "ok", (), ()) for source in answers)
    (job,) = build_snapshot(windows, ClusterSnapshot(tuple(rows), round_began_at=10.0), locate).jobs
    assert (job.running, job.told) == (running, told)


def test_a_job_goes_on_for_as_long_as_one_agent_tells_of_a_rank_that_runs(make: Any) -> None:
    windows = JobWindows(expire_after_seconds=900)
    ingest(windows, "b", make.node("n1", [2, 3], state="died"), 0.0)
    for now in (0.0, 800.0, 1600.0, 2400.0):
        ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0)]), now)
        windows.expire(now + 890.0)
    assert set(windows.jobs[KEY].ranks) == {0, 2, 3}


def test_memory_is_bounded_and_an_owners_own_jobs_that_ended_go_first(make: Any) -> None:
    windows = JobWindows(Limits(jobs=2, ranks=3))
    ingest(windows, "a", make.node("n0", [0, 1], job_id="first", state="finished"), 1.0)
    ingest(windows, "a", make.node("n0", [0], job_id="second"), 2.0)
    assert ingest(windows, "a", make.node("n0", [0, 1, 2], job_id="third"), 3.0) == {Refusal.NO_ROOM: 1}
    assert {key.job_id for key in windows.jobs} == {"second", "third"}
    assert ingest(windows, "a", make.node("n0", [0], job_id="fourth"), 4.0) == {Refusal.NO_ROOM: 1}
    not_held = windows.not_held({"a"})
    assert not_held.unseen == {JobKey(1000, "fourth")} and not_held.text() == (
        "1 job of user 1000 is not watched: there is room for 2 jobs and 3 ranks, and for 64 jobs and 1024 ranks of "
        "each agent"
    )
    assert not windows.not_held({"b"}).text()


def _jobs(make: Any, names: Iterable[str], owner: int, ranks: Sequence[int] = (0,)) -> Any:
    """The document of a node with jobs of these names, each with these ranks."""
    return make.ranks_document("n", [make.rank_row(rank, job_id=name, owner=owner) for name in names for rank in ranks])


def test_a_flood_of_one_users_jobs_leaves_the_others_theirs(make: Any) -> None:
    windows = JobWindows(Limits(jobs=100, ranks=10_000))
    for agent in range(4):  # the flood is there first, on every node
        ingest(windows, f"a{agent}", _jobs(make, (f"flood{agent}-{i}" for i in range(64)), 65534), 1.0)
    for owner in range(10):
        ingest(windows, "b", _jobs(make, ("x", "y"), owner), 2.0)
    for agent in range(4):
        ingest(windows, f"a{agent}", _jobs(make, (f"flood{agent}-{i}" for i in range(64)), 65534), 3.0)
    held = Counter(key.owner for key in windows.jobs)
    assert {owner: held[owner] for owner in range(10)} == dict.fromkeys(range(10), 2)
    assert held[65534] == 80 and len(windows.jobs) == 100
    not_held = windows.not_held([f"a{agent}" for agent in range(4)])
    assert len(not_held.unseen) == 4 * 64 - 80 and {key.owner for key in not_held.unseen} == {65534}


def test_a_flood_of_one_users_ranks_leaves_the_others_theirs(make: Any) -> None:
    windows = JobWindows(Limits(jobs=100, ranks=200))
    for agent in range(5):
        ranks = range(agent * 60, agent * 60 + 60)
        rows = [make.rank_row(rank, 300, owner=65534, job_id="flood") for rank in ranks]
        ingest(windows, f"a{agent}", make.ranks_document("n", rows), 1.0)
    for owner in range(5):
        assert not ingest(windows, "b", _jobs(make, ("real",), owner, range(4)), 2.0)
    assert {key.owner: len(job.ranks) for key, job in windows.jobs.items()} == {
        65534: 180,
        **dict.fromkeys(range(5), 4),
    }


def test_one_agent_that_lies_of_a_thousand_users_costs_itself_alone(make: Any) -> None:
    windows = JobWindows(Limits(jobs=100, ranks=10_000))
    lies = make.ranks_document("n", [make.rank_row(0, job_id=f"lie{i}", owner=i) for i in range(1000)])
    ingest(windows, "liar", lies, 1.0)
    for agent in range(30):
        assert not ingest(windows, f"a{agent}", _jobs(make, (f"real{agent}",), 5000 + agent), 2.0)
    assert sum(key.job_id.startswith("lie") for key in windows.jobs) == MAX_JOBS_OF_AGENT


def test_an_agent_cannot_fill_the_memory_with_other_ranks_each_round(make: Any) -> None:
    windows = JobWindows()
    for round in range(4):
        ranks = range(round * 1000, round * 1000 + 1000)
        ingest(windows, "liar", make.ranks_document("n", [make.rank_row(rank, 1 << 20) for rank in ranks]), round)
    assert len(windows.jobs[KEY].ranks) == MAX_RANKS_OF_AGENT


def test_on_a_flooded_node_a_new_job_takes_a_place_of_the_flood(make: Any) -> None:
    """The agent gives its places to users in turn; the collector follows it, though the old ones seem to run."""
    windows = JobWindows()
    ingest(windows, "a", _jobs(make, (f"flood{i}" for i in range(64)), 65534), 1.0)
    assert not ingest(windows, "a", _jobs(make, ("real",), 1000, (0, 1)), 2.0)
    assert len(windows.jobs[JobKey(1000, "real")].ranks) == 2


@pytest.mark.parametrize("lie", [{"attempt": 1 << 50}, {"world_size": 1 << 20}])
def test_an_agent_alone_cannot_take_a_job_from_the_agents_that_run_it(make: Any, lie: dict[str, int]) -> None:
    windows = JobWindows()
    lies = make.ranks_document("n9", [make.rank_row(**{"rank": 3, "world_size": 4, **lie})])
    for now in range(0, 60, 5):
        assert not ingest(windows, "a", make.node("n0", [0, 1]), now)
        assert not ingest(windows, "b", make.node("n1", [2, 3]), now)
        assert ingest(windows, "liar", lies, now) == {Refusal.OTHER_RUN: 1}
        windows.expire(now)
        assert {rank.source for rank in windows.jobs[KEY].ranks.values()} == {"a", "b"}
    ingest(windows, "liar", make.ranks_document("n9", []), 60.0)
    windows.expire(90.0)
    assert windows.jobs[KEY].run.world_size == 4


def test_an_agent_that_is_asked_last_in_a_long_round_does_not_take_a_job_from_those_asked_first(make: Any) -> None:
    """As in a fleet of 16,384 nodes, of which each is asked every 20 s."""
    windows = JobWindows()
    lies = make.ranks_document("n9", [make.rank_row(3, attempt=9)])
    for begin in (0.0, 20.0, 40.0):
        assert not ingest(windows, "a", make.node("n0", [0, 1]), begin)
        assert not ingest(windows, "b", make.node("n1", [2, 3]), begin + 1.0)
        assert ingest(windows, "liar", lies, begin + 19.0) == {Refusal.OTHER_RUN: 1}
        windows.expire(begin + 19.5)
        assert {rank.source for rank in windows.jobs[KEY].ranks.values()} == {"a", "b"}


def test_a_liar_that_was_first_loses_the_job_to_the_agents_that_run_it(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "liar", make.ranks_document("n9", [make.rank_row(0, attempt=7)]), 1.0)
    ingest(windows, "a", make.node("n0", [0, 1]), 1.0)
    assert not ingest(windows, "b", make.node("n1", [2, 3]), 1.0)
    assert {rank.source for rank in windows.jobs[KEY].ranks.values()} == {"a", "b"}
    assert len(_steps(windows, 0)) == 60  # nothing of what came before is lost


def test_an_elastic_restart_takes_over_in_the_round_in_which_most_agents_report_it(make: Any) -> None:
    windows = JobWindows()
    for agent in range(4):
        ingest(windows, f"a{agent}", make.node(f"n{agent}", [agent]), 1.0)
    for agent in range(3):
        ingest(windows, f"a{agent}", make.node(f"n{agent}", [agent], attempt=1, world_size=3), 2.0)
    assert windows.jobs[KEY].run == Run(1, 3) and set(windows.jobs[KEY].ranks) == {0, 1, 2}


def test_a_restart_on_half_of_the_nodes_waits_for_the_silent_ones_only_a_while(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0, 1]), 0.0)
    ingest(windows, "b", make.node("n1", [2, 3]), 0.0)  # then its node is lost
    for now in (5.0, 20.0):
        ingest(windows, "a", make.node("n0", [0, 1], attempt=1, world_size=2), now)
        windows.expire(now)
    assert windows.jobs[KEY].run == Run(1, 2)


ANSWERS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.lists(
            st.tuples(
                st.integers(0, 3),  # owner
                st.sampled_from("xyz"),
                st.integers(0, 2),  # rank
                st.integers(0, 1),  # attempt
                st.sampled_from(("running", "running", "died")),
            ),
            max_size=12,
        ),
        st.booleans(),
    ),
    max_size=15,
)


@given(ANSWERS)
@settings(deadline=None)
def test_whatever_comes_the_limits_hold_and_the_counts_are_true(make: Any, answers: Any) -> None:
    windows = JobWindows(Limits(jobs=4, ranks=6), expire_after_seconds=100)
    for number, (source, told, rebooted) in enumerate(answers):
        now = number * 20.0
        if rebooted:
            windows.drop_source(source)
        ranks = [
            make.rank_row(rank, owner=owner, job_id=job, attempt=attempt, state=state, rows=[make.step_row(number)])
            for owner, job, rank, attempt, state in told
        ]
        ingest(windows, source, make.ranks_document(source, ranks), now)
        windows.expire(now)
        held = [job.ranks for job in windows.jobs.values()]
        assert all(held) and len(held) <= 4 and sum(map(len, held)) <= 6
    for source in "abc":
        windows.drop_source(source)
    assert not windows.jobs and (windows._jobs_held.total, windows._ranks_held.total) == (0, 0)


def test_a_silent_agents_ranks_keep_their_steps_but_their_state_is_unknown(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0, 1]), 1.0)
    ingest(windows, "b", make.node("n1", [2, 3]), 1.0)
    timings = windows.jobs[KEY].timings("job-1", {"a"}, {})
    assert timings.step_seconds.shape == (60, 4)
    assert [state.state for state in timings.states] == ["running", "running", "unknown", "unknown"]


def test_timings_hold_the_newest_steps_of_all_ranks(make: Any) -> None:
    windows = JobWindows()
    for source, rank, first in (("a", 0, 0), ("b", 1, 1000)):
        rows = [make.step_row(step) for step in range(first, first + WINDOW_STEPS)]
        ingest(windows, source, make.ranks_document("n0", [make.rank_row(rank, rows=rows)]), 1.0)
    steps = windows.jobs[KEY].timings("job-1", {"a", "b"}, {}).steps
    assert steps[0] == 1000 and len(steps) == WINDOW_STEPS


def test_of_short_steps_those_of_the_last_seconds_are_kept(make: Any) -> None:
    windows = JobWindows()
    rows = [_short(make.step_row(step)) for step in range(3000)]
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, rows=rows)]), 1.0)
    kept = list(step_rows(windows.jobs[KEY].ranks[0].table))
    assert rows[-1].end - kept[0].start == pytest.approx(WINDOW_SECONDS, abs=0.1) and kept[-1] == rows[-1]
    assert len(windows.jobs[KEY].timings("job-1", {"a"}, {}).steps) == len(kept) > 4 * WINDOW_STEPS


def test_short_steps_of_many_ranks_take_no_more_room_than_steps_of_all_that_an_agent_may_report(make: Any) -> None:
    windows = JobWindows()
    rows = [_short(make.step_row(step)) for step in range(1400)]
    for turn in (0, 1):
        ranks = [make.rank_row(rank, world_size=512, rows=rows[turn:]) for rank in range(512)]
        ingest(windows, "a", make.ranks_document("n0", ranks), float(turn))
    kept = sum(len(rank.table) for rank in windows.jobs[KEY].ranks.values())
    assert kept <= 2 * MAX_RANKS_OF_AGENT * WINDOW_STEPS


def _short(row: StepRow) -> StepRow:
    """The same step, 0.03 s long."""
    return row._replace(start=100.0 + row.step * 0.03, end=100.03 + row.step * 0.03)


def test_a_rebooted_agents_ranks_are_dropped(make: Any) -> None:
    windows = JobWindows()
    ingest(windows, "a", make.node("n0", [0, 1]), 1.0)
    ingest(windows, "b", make.node("n1", [2, 3]), 1.0)
    windows.drop_source("a")
    assert set(windows.jobs[KEY].ranks) == {2, 3}
    windows.drop_source("b")
    assert not windows.jobs


@pytest.mark.parametrize("count", [0, 1])
def test_a_job_without_steps_has_timings_too(make: Any, count: int) -> None:
    windows = JobWindows()
    rows = [make.step_row(step) for step in range(count)]
    ingest(windows, "a", make.ranks_document("n0", [make.rank_row(0, rows=rows)]), 1.0)
    assert windows.jobs[KEY].timings("job-1", {"a"}, {}).step_seconds.shape == (count, 1)
