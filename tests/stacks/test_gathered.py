"""Where the ranks of a job stand is told once for all that stand alike."""

from laggard.stacks.difference import differing_from, standing_beside, standings
from laggard.stacks.sampled import STALLED, Counted, Frame, Sampled, Thread, collective_of, own_frame, place_text

LIBRARY = "/venv/lib/python3.11/site-packages/"
MODULE = Frame("<module>", "/home/u/train.py", 120)
WAIT = (Frame("all_reduce", f"{LIBRARY}torch/distributed/distributed_c10d.py", 99), MODULE)
SAVE = (Frame("save", f"{LIBRARY}torch/serialization.py", 5), Frame("keep", "/home/u/ckpt.py", 41), MODULE)


def stands(rank: int, frames: tuple[Frame, ...], at: float = 1.0, waits: str = "") -> Sampled:
    thread = Thread("MainThread", (Counted(1, frames, "", waits),))
    return Sampled("j", rank, "n", 1, STALLED, at, 0.0, (thread,), 30.0)


def test_the_one_that_is_in_no_collective_comes_first() -> None:
    found = standings([stands(rank, SAVE if rank == 9 else WAIT) for rank in range(16)])
    assert [(each.ranks, each.place) for each in found] == [
        ((9,), "save (serialization.py:5), called in keep (ckpt.py:41)"),
        ((*range(9), *range(10, 16)), "all_reduce, called in <module> (train.py:120)"),
    ]
    own, waiting = standing_beside(9, found)
    assert own is found[0] and waiting is found[1]
    assert differing_from(found[0].stack, found[1].stack) == 2


def test_ranks_of_one_stack_in_other_collectives_are_told_apart() -> None:
    found = standings([stands(0, WAIT, waits="all_reduce"), stands(1, WAIT, waits="broadcast")])
    assert sorted(each.waits for each in found) == ["all_reduce", "broadcast"]


def test_four_thousand_ranks_are_two_lines() -> None:
    assert len(standings([stands(rank, SAVE if rank == 9 else WAIT) for rank in range(4096)])) == 2


def test_ranks_that_went_on_from_one_line_are_told_apart_by_where_they_came_to() -> None:
    lock = Frame("FileBaton.wait", f"{LIBRARY}torch/utils/file_baton.py", 50)
    sleep = Frame("sleep", "/usr/lib/python3.11/time.py", 1)
    group = Frame("_new_process_group_helper", f"{LIBRARY}torch/distributed/distributed_c10d.py", 7)
    init = Frame("init_distributed", f"{LIBRARY}deepspeed/comm/comm.py", 910)
    found = standings(
        [stands(1, (sleep, lock, init, MODULE)), *(stands(rank, (group, init, MODULE)) for rank in (0, 2))]
    )
    assert [(each.ranks, each.place) for each in found] == [
        ((1,), "FileBaton.wait (file_baton.py:50), called in <module> (train.py:120)"),
        ((0, 2), "_new_process_group_helper (distributed_c10d.py:7), called in <module> (train.py:120)"),
    ]


def test_a_rank_that_waits_for_its_workers_stands_where_they_do() -> None:
    loader = f"{LIBRARY}torch/utils/data/dataloader.py"
    waits = Frame("_Iter._try_get_data", loader, 1), Frame("__next__", loader, 2), MODULE
    read = Frame("read", "/home/u/data.py", 36), Frame("fetch", f"{LIBRARY}torch/utils/data/_utils/fetch.py", 5)
    idle = (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 3),)

    def with_worker(rank: int, frames: tuple[Frame, ...]) -> Sampled:
        whole = stands(rank, waits)
        return whole._replace(threads=(*whole.threads, Thread("w", (Counted(1, frames),), pid=9)))

    found = standings([with_worker(0, idle), with_worker(1, read)])
    assert [(each.ranks, each.place) for each in found] == [
        ((0,), "__next__ (dataloader.py:2), called in <module> (train.py:120)"),
        ((1,), "its child process read (data.py:36)"),
    ]


def test_where_a_thread_stands_in_words() -> None:
    assert place_text((MODULE,)) == "<module> (train.py:120)"
    assert place_text((SAVE[1]._replace(kind="generator"), MODULE)) == "keep (ckpt.py:41, generator)"
    library = Frame("wait", f"{LIBRARY}torch/utils/file_baton.py", 49)
    assert place_text((library,)) == "wait (file_baton.py:49)"
    assert own_frame(WAIT) is MODULE
    assert collective_of(SAVE) == ""
