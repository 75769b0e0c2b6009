"""Hangs told by what devices have yet to finish: the device that stopped, the host that did, a deadlock, and what looks
alike and accuses nobody."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.flight_recorder import DATA, TENSOR, WORLD, Group, dump, entry, groups_of, write_dumps

from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording.reader import read_recording


def judged(folder: Path, dumps: dict[int, Any], seconds_after: float | None = None) -> Location:
    write_dumps(folder, dumps)
    for file in folder.iterdir() if seconds_after is not None else ():
        last = max(it["time_created_ns"] for value in dumps.values() for it in value["entries"]) / 1e9
        os.utime(file, (last + seconds_after,) * 2)
    return locate(read_recording([folder]).timings)


def note(location: Location, kind: str) -> Any:
    return next(each for each in location.notes if each.kind == kind)


def ahead(group: Group, first: int, count: int) -> list[dict[str, Any]]:
    """What a host launched ahead of its device."""
    return [entry(group, "all_reduce", first + number, "scheduled") for number in range(count)]


def stopped_at_the_end(rank: int = 2) -> dict[int, Any]:
    """The world's second all_reduce is over for all but one rank; each host has launched another number more."""
    dumps = {}
    for each in range(4):
        second = entry(WORLD, "all_reduce", 2, "scheduled" if each == rank else "completed")
        entries = [entry(WORLD, "all_reduce", 1), second, *ahead(WORLD, 3, 5 + 7 * (each % 3))]
        dumps[each] = dump([WORLD], entries)
    return dumps


def test_the_device_that_does_not_finish_what_all_others_have(tmp_path: Path) -> None:
    location = judged(tmp_path / "d", stopped_at_the_end())
    (culprit,) = location.culprits
    assert (culprit.kind, culprit.ranks, culprit.device_stopped, culprit.victims) == ("hung", (2,), True, (0, 1, 3))
    assert culprit.evidence[0] == (
        "came to all_reduce number 2 of world:0-3, which ranks 0-1 and 3 finished, and never finished it"
    )
    assert "launched 19 more, none of which is finished" in culprit.evidence[1]
    assert "Xid" in culprit.advice and "nvidia-smi" in culprit.advice and "py-spy" not in culprit.advice


def test_how_far_hosts_have_launched_ahead_accuses_nobody(tmp_path: Path) -> None:
    """All stand in one all_reduce; rank 1's host has launched 3 more, the others' 90."""
    dumps = {
        rank: dump([WORLD], [entry(WORLD, "all_reduce", 1), *ahead(WORLD, 2, 4 if rank == 1 else 91)])
        for rank in range(4)
    }
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    unfinished = note(location, "unfinished")
    assert unfinished.ranks == (0, 1, 2, 3) and "to which all came" in unfinished.text


def test_of_two_operations_that_do_not_end_the_rank_that_is_in_both(tmp_path: Path) -> None:
    """Gradients are reduced beside the backward pass. Rank 1's device stopped in both; ranks 2 and 3 went on after they
    had begun the same, so that the one does not wait for the other."""
    dumps = {}
    for rank in range(4):
        tensor, data = TENSOR[rank // 2], DATA[rank % 2]
        of_rank_1 = rank % 2 == 1
        entries = [entry(tensor, "all_reduce", 1)]
        entries.append(entry(data, "_reduce_scatter_base", 1, "scheduled" if of_rank_1 else "completed"))
        entries.append(entry(tensor, "all_reduce", 2, "scheduled" if rank < 2 else "completed"))
        dumps[rank] = dump(groups_of(rank), [*entries, *ahead(tensor, 3, 4)])
    location = judged(tmp_path / "d", dumps)
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]
    assert len([line for line in location.culprits[0].evidence if "which nobody finished" in line]) == 2


def test_where_nothing_tells_which_of_a_group_the_group_is_named(tmp_path: Path) -> None:
    dumps = {}
    for rank in range(4):
        tensor, data = TENSOR[rank // 2], DATA[rank % 2]
        entries = [entry(tensor, "all_reduce", 1), entry(data, "all_reduce", 1)]
        if rank < 2:
            entries += ahead(tensor, 2, 3)
        else:
            entries += [entry(tensor, "all_reduce", 2), *ahead(data, 2, 1), *ahead(tensor, 3, 2)]
        if rank < 2:
            entries += ahead(data, 2, 1)
        dumps[rank] = dump(groups_of(rank), entries)
    location = judged(tmp_path / "d", dumps)
    (culprit,) = location.culprits
    assert culprit.ranks == (0, 1) and culprit.device_stopped and culprit.confidence == 0.5
    assert culprit.victims == (2, 3)


def crossing(launched_both: bool) -> dict[int, Any]:
    """Rank 0 called tp, then dp, where rank 1 calls them the other way round, in two groups of both."""
    one, other = ("1", "tp", [0, 1]), ("2", "dp", [0, 1])
    dumps = {}
    for rank, (first, second) in enumerate([(one, other), (other, one)]):
        entries = [entry(one, "all_reduce", 1), entry(other, "all_reduce", 1), *ahead(first, 2, 1)]
        dumps[rank] = dump([one, other], [*entries, *(ahead(second, 2, 1) if launched_both else [])])
    return dumps


def test_a_deadlock_is_told_where_launches_cross(tmp_path: Path) -> None:
    location = judged(tmp_path / "d", crossing(launched_both=False))
    assert location.verdict is Verdict.FAIL and not location.culprits
    assert note(location, "deadlock").ranks == (0, 1)


def test_where_both_launched_both_no_deadlock_is_told(tmp_path: Path) -> None:
    location = judged(tmp_path / "d", crossing(launched_both=True))
    assert location.verdict is Verdict.UNKNOWN and [each.kind for each in location.notes] == ["unfinished"]


def test_a_send_is_no_part_of_a_deadlock(tmp_path: Path) -> None:
    """Rank 0 sent to rank 1, whose receive comes after what rank 0 never launched. It is no deadlock, since a send
    keeps no host from going on."""
    pair: Group = ("1", "pp", [0, 1])
    before = entry(pair, "all_reduce", 1)
    dumps = {
        0: dump([pair], [before, entry(pair, "send 0->1", 1, "scheduled", p2p_seq_id=1)]),
        1: dump([pair], [before, entry(pair, "all_reduce", 2, "scheduled")]),
    }
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and [each.kind for each in location.notes] == ["unfinished"]


def test_a_send_and_a_receive_of_one_batch_are_no_deadlock(tmp_path: Path) -> None:
    """Both ranks posted a send and a receive at once, each its send first, and wait for rank 2."""
    pair: Group = ("1", "pp", [0, 1])
    world: Group = ("0", "default_pg", [0, 1, 2])
    entries = {
        0: [entry(pair, "send 0->1", 0, p2p_seq_id=1), entry(pair, "recv 0<-1", 0, p2p_seq_id=1)],
        1: [entry(pair, "send 1->0", 0, p2p_seq_id=1), entry(pair, "recv 1<-0", 0, p2p_seq_id=1)],
        2: [],
    }
    stuck = {rank: [{**it, "state": "scheduled", "retired": False} for it in entries[rank]] for rank in (0, 1)}
    dumps = {rank: dump([world, pair], [entry(world, "all_reduce", 1), *stuck.get(rank, [])]) for rank in range(3)}
    location = judged(tmp_path / "d", dumps)
    assert not any(each.kind == "deadlock" for each in location.notes)


def test_a_dump_that_lacks_what_others_finished_is_older_and_names_nobody(tmp_path: Path) -> None:
    dumps = stopped_at_the_end()
    dumps[1] = dump([WORLD], [entry(WORLD, "all_reduce", 1)])
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    assert note(location, "older_dump").ranks == (1,)


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather"])
def test_a_root_that_was_done_early_makes_no_dump_older(tmp_path: Path, op: str) -> None:
    """Rank 0 is done with what ranks 1 and 2 wait in; rank 3 never came."""
    dumps = {0: dump([WORLD], [entry(WORLD, "all_reduce", 1), entry(WORLD, op, 2)])}
    for rank in (1, 2):
        dumps[rank] = dump([WORLD], [entry(WORLD, "all_reduce", 1), entry(WORLD, op, 2, "scheduled")])
    dumps[3] = dump([WORLD], [entry(WORLD, "all_reduce", 1)])
    location = judged(tmp_path / "d", dumps)
    assert [culprit.ranks for culprit in location.culprits] == [(3,)]


def test_a_job_that_ran_until_it_was_dumped_accuses_nobody(tmp_path: Path) -> None:
    location = judged(tmp_path / "d", stopped_at_the_end(), seconds_after=0.4)
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    assert "may have been running" in note(location, "moving").text
    location = judged(tmp_path / "d", stopped_at_the_end(), seconds_after=30.0)
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]


def test_an_empty_dump_is_of_a_rank_of_which_nothing_is_known(tmp_path: Path) -> None:
    """Its recorder was off: others finished what nobody can finish without it."""
    dumps = {rank: dump([WORLD], [entry(WORLD, "all_reduce", 1), *ahead(WORLD, 2, 3)]) for rank in range(3)}
    dumps[3] = dump([WORLD])
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and note(location, "unseen_ranks").ranks == (3,)


def test_what_was_dropped_and_is_not_finished_stands_in_the_counts(tmp_path: Path) -> None:
    """The recorder of rank 0 kept the newest three, none of which is finished; its counts say where it stands."""
    kept = [entry(WORLD, "all_reduce", number, "scheduled", record_id=number) for number in (90, 91, 92)]
    dumps = {0: dump([WORLD], kept, {0: (92, 1)})}
    for rank in (1, 2, 3):
        dumps[rank] = dump([WORLD], [entry(WORLD, "all_reduce", 1), entry(WORLD, "all_reduce", 2)])
    location = judged(tmp_path / "d", dumps)
    (culprit,) = location.culprits
    assert culprit.ranks == (0,) and culprit.evidence[0].startswith("came to collective number 2 of world:0-3, which")


def test_batches_of_messages_that_torch_counted_as_collectives_are_not_compared(tmp_path: Path) -> None:
    """With torch 2.4 and 2.5 rank 0 has counted two batches in its group, rank 1 one: their numbers differ by that, and
    all_reduce number 4 of the one is number 3 of the other."""
    pair: Group = ("1", "pp", [0, 1, 2])
    batch = [
        entry(pair, "send 0->1", 1, p2p_seq_id=1),
        entry(pair, "coalesced", 2, p2p_seq_id=1, is_p2p=False),
    ]
    dumps = {
        0: dump([pair], [*batch, *batch, entry(pair, "all_reduce", 4, "scheduled")], version="2.4"),
        1: dump([pair], [*batch[:1], batch[1], entry(pair, "broadcast", 4, "scheduled")], version="2.4"),
        2: dump([pair], [entry(pair, "all_reduce", 2, "scheduled")], version="2.4"),
    }
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    assert not any(each.kind == "mismatch" for each in location.notes)


def test_a_receive_from_any_rank_is_no_sign_that_its_host_hangs(tmp_path: Path) -> None:
    """Torch 2.15 writes such a receive as `recv 1<-?`. What rank 1 waits for is not known."""
    receive = entry(WORLD, "recv 1<-?", 0, "scheduled", p2p_seq_id=1)
    dumps = {
        rank: dump(
            [WORLD],
            [entry(WORLD, "all_reduce", 1), receive if rank == 1 else entry(WORLD, "all_reduce", 2, "scheduled")],
        )
        for rank in range(4)
    }
    location = judged(tmp_path / "d", dumps)
    assert location.verdict is Verdict.UNKNOWN and not location.culprits


def test_both_times_at_once_tell_nothing_of_what_a_device_began(tmp_path: Path) -> None:
    """Torch 2.15 notes begin and end together, when a collective is done."""
    done = {"time_discovered_started_ns": 9, "time_discovered_completed_ns": 9}
    dumps = {}
    for rank in range(4):
        entries = [entry(WORLD, "all_reduce", 1, **done), entry(WORLD, "all_reduce", 2, "scheduled")]
        dumps[rank] = dump([WORLD], entries)
    location = judged(tmp_path / "d", dumps)
    assert not location.culprits and note(location, "unfinished").ranks == (0, 1, 2, 3)


def test_the_sentence_says_that_it_is_the_gpu(tmp_path: Path) -> None:
    from laggard.locate.describe import details, sentence

    location = judged(tmp_path / "d", stopped_at_the_end())
    assert sentence(location) == (
        "Rank 2 is hung, its GPU no longer completes what it launched: the others wait for it."
    )
    assert any(line.startswith("What to do: look at the GPU") for line in details(location))
