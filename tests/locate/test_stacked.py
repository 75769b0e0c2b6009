"""A culprit gets its place in the code; nobody is accused by a stack alone."""

from typing import Any

import pytest
from support.timings import job

from laggard.locate.describe import details, sentence
from laggard.locate.stacked import located, with_stacks
from laggard.locate.verdict import locate
from laggard.model import CpuNeighbour, Culprit, Location, Note, Verdict, Window
from laggard.stacks.sampled import ASKED, FAILED, HELD, STALLED, TERMINATED, Counted, Frame, Sampled, Thread

MODULE = Frame("<module>", "/home/u/train.py", 120)
LIBRARY = "/venv/lib/python3.11/site-packages/"
WAIT = (Frame("all_reduce", f"{LIBRARY}torch/distributed/distributed_c10d.py", 9), MODULE)
SLOW = (Frame("tokenize", "/home/u/data.py", 88), MODULE)
SAVE = (Frame("save", f"{LIBRARY}torch/serialization.py", 5), Frame("keep", "/home/u/ckpt.py", 41), MODULE)


def location(*culprits: Culprit, notes: tuple[Note, ...] = ()) -> Location:
    verdict = Verdict.FAIL if culprits else Verdict.OK
    return Location(verdict, "j", 4, 4, Window(), None, culprits, notes)


def took(rank: int, why: str, frames: tuple[Frame, ...], at: float = 1.0, times: int = 1) -> Sampled:
    return Sampled("j", rank, "n", 1, why, at, 0.0, (Thread("MainThread", (Counted(times, frames),)),), 31.0)


def found(culprit: Culprit, *sampled: Sampled) -> Any:
    return with_stacks(location(culprit), sampled).culprits[0].stack


def test_a_slow_rank_is_compared_with_those_that_nobody_accuses() -> None:
    slow = Culprit("slow_host", (1,), node="n", phase="between_steps")
    stack = found(
        slow, took(1, ASKED, SLOW, times=200), took(0, ASKED, WAIT, times=200), took(2, ASKED, WAIT, times=200)
    )
    assert stack.text == "100 % of the samples in tokenize (data.py:88); peers 0 %"
    assert (stack.place, stack.rank, stack.peer, stack.differing) == ("tokenize (data.py:88)", 1, 0, 1)
    assert stack.frames[0] == "tokenize (/home/u/data.py:88)"
    assert stack.only_here
    both = location(slow, Culprit("slow_host", (0,)))
    again = with_stacks(both, [took(1, ASKED, SLOW, times=200), took(0, ASKED, SLOW, times=200)])
    assert [culprit.stack for culprit in again.culprits] == [None, None], "there is no peer left"


def test_the_advice_begins_with_the_line_that_explains_a_slow_rank() -> None:
    def advice(*stacks: Counted, peers: tuple[Counted, ...] = (Counted(200, WAIT),), **changes: Any) -> str:
        slow = Culprit("slow_compute", (1,), node="n", phase="forward", advice="compare the clocks", **changes)
        its = [Sampled("j", 1, "n", 1, ASKED, 1.0, 0.0, (Thread("MainThread", stacks),), 31.0)]
        its += [Sampled("j", 0, "n", 1, ASKED, 1.0, 0.0, (Thread("MainThread", peers),), 31.0)]
        (told,) = with_stacks(location(slow), its).culprits
        return told.advice

    line = "look at tokenize (data.py:88), where rank 1 alone is; else compare the clocks"
    assert advice(Counted(150, SLOW), Counted(50, WAIT)) == line
    assert advice(Counted(80, SLOW, "forward"), Counted(120, WAIT, "backward")) == line  # most of its slow phase
    assert advice(Counted(150, SLOW), Counted(50, WAIT), findings=("CPU_BUSY",)) == line  # which no line is slow by
    some = (Counted(20, SLOW), Counted(180, WAIT))
    for other in (
        advice(Counted(80, SLOW), Counted(120, WAIT)),  # less than half of its time
        advice(Counted(150, SLOW), Counted(50, WAIT), peers=some),  # its peers do the same, in less time
        advice(Counted(150, SAVE[:1]), Counted(50, WAIT)),  # a library's
        advice(Counted(150, SLOW), Counted(50, WAIT), findings=("GPU_THROTTLED",)),
        advice(Counted(150, SLOW), Counted(50, WAIT), neighbours=(CpuNeighbour(7, 0, 1.0),)),
    ):
        assert other == "compare the clocks"


@pytest.mark.parametrize(
    ("rank", "phase", "frames", "verdict"),
    [
        (5, "other", SLOW, Verdict.FAIL),
        (5, "", SAVE, Verdict.FAIL),  # a library's function that the script calls
        (5, "forward", SLOW, Verdict.UNKNOWN),  # something else
        (5, "other", WAIT[:1], Verdict.UNKNOWN),  # it waits
        (0, "other", SLOW, Verdict.OK),  # what scripts leave to rank 0
    ],
)
def test_time_in_no_phase_accuses_whose_stacks_are_in_the_scripts_own_code(
    rank: int, phase: str, frames: tuple[Frame, ...], verdict: Verdict
) -> None:
    timings = job(32, slow=[([rank], 0.2)], phase="other")
    peers = Counted(200, WAIT, waits="all_reduce")
    own = (Counted(40, frames, phase), Counted(160, WAIT, "backward", waits="all_reduce"))
    stacks = [
        Sampled("j", it, "n", 1, ASKED, 1.0, 0.0, (Thread("MainThread", own if it == rank else (peers,)),), 31.0)
        for it in range(32)
    ]
    told = located(locate, timings, stacks)
    assert told.verdict is verdict
    if verdict is Verdict.FAIL:
        (culprit,) = with_stacks(told, stacks).culprits
        assert culprit.ranks == (rank,) and culprit.recoverable_ratio == pytest.approx(0.16, abs=0.03)
        assert culprit.advice.startswith("look at ") and not any(it.kind == "unnamed_time" for it in told.notes)


def test_a_hung_rank_stands_beside_one_that_waits() -> None:
    hung = Culprit("hung", (2,))
    told = with_stacks(location(hung), [took(rank, STALLED, SAVE if rank == 2 else WAIT) for rank in range(4)])
    stack = told.culprits[0].stack
    assert stack is not None
    assert stack.text == (
        "save (serialization.py:5), called in keep (ckpt.py:41);"
        " 3 ranks in all_reduce, called in <module> (train.py:120)"
    )
    assert details(told)[0] == f"In the code: {stack.text}"


def test_what_sigterm_found_hides_no_child_process() -> None:
    loader = f"{LIBRARY}torch/utils/data/dataloader.py"
    waits = (Frame("_try_get_data", loader, 1), MODULE)
    read = (Frame("read", "/home/u/data.py", 36),)
    stalled = took(1, STALLED, waits, at=1.0)
    stalled = stalled._replace(threads=(*stalled.threads, Thread("w", (Counted(1, read),), pid=7)))
    others = took(0, STALLED, WAIT, at=1.0), took(0, TERMINATED, WAIT, at=9.0)
    stack = found(Culprit("hung", (1,)), stalled, took(1, TERMINATED, waits, at=9.0), *others)
    assert stack.place == "its child process read (data.py:36)"
    moved = found(Culprit("hung", (1,)), stalled, took(1, TERMINATED, SAVE, at=9.0), *others)
    assert moved.place.startswith("save"), "it went on meanwhile"


def test_what_c_code_held_is_told_by_faulthandlers_dump() -> None:
    stack = found(Culprit("hung", (0,)), took(0, HELD, SLOW), took(1, STALLED, WAIT))
    assert stack.place == "tokenize (data.py:88)"


def test_one_that_died_left_its_last_stack() -> None:
    stack = found(Culprit("dead", (0,)), took(0, FAILED, SAVE, at=1.0), took(0, TERMINATED, WAIT, at=2.0))
    assert stack.text == "save (serialization.py:5), called in keep (ckpt.py:41)"
    assert stack.peer is None


def test_a_link_has_no_place_in_the_code() -> None:
    assert found(Culprit("slow_link", (0, 1)), took(0, ASKED, SLOW, times=200), took(1, ASKED, WAIT, times=200)) is None


def test_a_healthy_job_is_told_nothing() -> None:
    healthy = location()
    assert with_stacks(healthy, [took(0, ASKED, SLOW, times=200), took(1, ASKED, WAIT, times=200)]) == healthy
    assert with_stacks(healthy, []) == healthy


@pytest.mark.parametrize("kind", ["deadlock", "waiting", "hang", "mismatch", "unseen_ranks"])
def test_a_job_that_stands_still_without_a_culprit_says_where(kind: str) -> None:
    still = location(notes=(Note(kind, "ranks wait"),))
    told = with_stacks(still, [took(0, STALLED, SAVE), took(1, STALLED, WAIT)])
    assert [note.kind for note in told.notes] == [kind, "stacks"]
    assert "rank 0 in save (serialization.py:5), called in keep (ckpt.py:41)" in told.notes[1].text


def test_a_job_without_a_step_says_where_it_stands_first() -> None:
    lock = Frame("FileBaton.wait", f"{LIBRARY}torch/utils/file_baton.py", 50), MODULE
    unknown = Location(Verdict.UNKNOWN, "j", 2, 0, Window(), None, (), (Note("no_steps", "no step"),))
    assert sentence(with_stacks(unknown, [took(0, STALLED, lock), took(1, STALLED, lock)])) == (
        "Cannot tell: the processes stand still for 31 s or more: ranks 0-1 in FileBaton.wait (file_baton.py:50),"
        " called in <module> (train.py:120)."
    )


def test_hostile_names_stay_on_one_line() -> None:
    evil = Frame("f" * 500, "/a\n/" + "x" * 500, 1), MODULE
    stack = found(Culprit("dead", (0,)), took(0, FAILED, evil))
    assert len(stack.text) <= 400 and "\n" not in stack.text and len(stack.place) <= 160


def test_a_hung_rank_without_a_python_frame_is_told_by_its_place_in_the_kernel() -> None:
    hung = location(Culprit("hung", (2,)))
    waits = [took(rank, STALLED, WAIT) for rank in (0, 1, 3)]
    told = with_stacks(hung, waits, kernel={2: "stopped by a signal"})
    stack = told.culprits[0].stack
    assert stack is not None and (stack.rank, stack.frames, stack.place) == (2, (), "stopped by a signal")
    assert stack.text == "stopped by a signal; 3 ranks in all_reduce, called in <module> (train.py:120)"
    alone = with_stacks(hung, [], kernel={2: "stopped by a signal"}).culprits[0].stack
    assert alone is not None and alone.text == "stopped by a signal" and alone.peer is None
    assert with_stacks(hung, waits, kernel={1: "stopped by a signal"}).culprits[0].stack is None


def test_a_hung_rank_with_a_stack_is_told_by_both() -> None:
    own = took(2, STALLED, SAVE)._replace(kernel="uninterruptible: rpc_wait_bit_killable (system call write, NFS)")
    stack = found(Culprit("hung", (2,)), own, took(0, STALLED, WAIT))
    assert stack.text == (
        "save (serialization.py:5), called in keep (ckpt.py:41); uninterruptible: rpc_wait_bit_killable "
        "(system call write, NFS); rank 0 in all_reduce, called in <module> (train.py:120)"
    )
    assert stack.place == "save (serialization.py:5), called in keep (ckpt.py:41)"


def test_a_place_in_the_kernel_accuses_nobody() -> None:
    waiting = Note("waiting", "")
    told = with_stacks(
        location(notes=(waiting,)), [took(0, STALLED, WAIT)], kernel={2: "in the kernel: futex_wait_queue"}
    )
    assert not told.culprits
    assert told.notes[1].text.startswith("the processes stand still for 31 s or more: rank 2 in the kernel: futex_wait")
    slow = Culprit("slow_host", (2,))
    assert with_stacks(location(slow), [], kernel={2: "in the kernel: futex_wait_queue"}).culprits[0].stack is None
