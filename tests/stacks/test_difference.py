"""What a slow rank does more than its peers: named where it is clear, and nothing where ranks are alike."""

import random
from collections.abc import Sequence

import pytest

from laggard.stacks.difference import MIN_SAMPLES, difference
from laggard.stacks.sampled import ASKED, Counted, Frame, Sampled, Thread

LIBRARY = "/venv/lib/python3.11/site-packages/"
LOADER = f"{LIBRARY}torch/utils/data/dataloader.py"
MODULE = Frame("<module>", "/home/u/train.py", 20)
WAIT = (Frame("all_reduce", f"{LIBRARY}torch/distributed/distributed_c10d.py", 99), MODULE)
COMPUTE = (Frame("forward", "/home/u/model.py", 7), MODULE)
TOKENIZE = (Frame("tokenize", "/home/u/data.py", 88), Frame("collate", "/home/u/data.py", 12), MODULE)
REGEX = (Frame("findall", "/usr/lib/python3.11/re/__init__.py", 216), *TOKENIZE)


def rank(number: int, *stacks: tuple[int, Sequence[Frame]], waits: int = 0, phase: str = "") -> Sampled:
    told = [Counted(times, tuple(frames), phase) for times, frames in stacks]
    if waits:
        told.append(Counted(waits, WAIT, "backward", "all_reduce"))
    return Sampled("j", number, "n", number + 1, ASKED, 1.0, 10.0, (Thread("MainThread", tuple(told)),))


def test_the_function_of_the_script_is_named_with_what_it_calls() -> None:
    slow = rank(1, (140, REGEX), (60, COMPUTE), phase="forward")
    found = difference(slow, [rank(0, (60, COMPUTE), waits=140), rank(2, (4, REGEX), (56, COMPUTE), waits=140)])
    assert found is not None
    assert (
        found.text()
        == "forward: 70 % of the samples in tokenize (data.py:88), which calls findall (__init__.py); peers 1 %"
    )


def test_where_all_is_a_librarys_the_call_of_the_script_is_named() -> None:
    inner = Frame("inner", f"{LIBRARY}torch/x.py", 1), Frame("save", f"{LIBRARY}torch/serialization.py", 5), MODULE
    found = difference(rank(1, (150, inner), (50, COMPUTE)), [rank(0, (50, COMPUTE), waits=150)])
    assert found is not None
    assert (
        found.text() == "75 % of the samples in save (serialization.py:5), called in <module> (train.py:20); peers 0 %"
    )


def test_waiting_is_nobodys_slowness() -> None:
    assert difference(rank(0, (60, COMPUTE), waits=140), [rank(1, (140, TOKENIZE), (60, COMPUTE))]) is None


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_are_alike_differ_in_nothing(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [TOKENIZE, COMPUTE, REGEX, WAIT, (Frame("step", "/home/u/model.py", 9), MODULE)]

    def drawn(number: int) -> Sampled:
        picked = chance.choices(kinds, [3, 8, 1, 6, 2], k=200)
        return rank(number, *((picked.count(kind), kind) for kind in kinds if picked.count(kind)))

    found = difference(drawn(0), [drawn(1), drawn(2)])
    assert found is None or found.share - found.peers_share < 0.17, found


def test_too_few_samples_say_nothing() -> None:
    slow, peer = rank(1, (MIN_SAMPLES - 1, TOKENIZE)), rank(0, (200, COMPUTE))
    assert difference(slow, [peer]) is None
    assert difference(rank(1, (200, TOKENIZE)), [rank(0, (MIN_SAMPLES - 1, COMPUTE))]) is None
    assert difference(rank(1, (200, TOKENIZE)), []) is None


def test_of_a_rank_that_waits_for_its_workers_these_are_told() -> None:
    waits = Frame("_MultiProcessingDataLoaderIter._try_get_data", LOADER, 1), Frame("__next__", LOADER, 2), MODULE
    worker = Frame("decode", "/home/u/data.py", 40), Frame("fetch", f"{LIBRARY}torch/utils/data/_utils/fetch.py", 5)
    idle = (
        Frame("get", "/usr/lib/python3.11/queue.py", 3),
        Frame("_worker_loop", f"{LIBRARY}torch/utils/data/_utils/worker.py", 9),
    )

    def with_worker(of: Sampled, frames: Sequence[Frame]) -> Sampled:
        return of._replace(threads=(*of.threads, Thread("worker", (Counted(100, tuple(frames)),), pid=99)))

    slow = with_worker(rank(1, (180, waits), (20, COMPUTE), phase="input"), worker)
    found = difference(slow, [with_worker(rank(0, (20, COMPUTE), waits=180), idle)])
    assert found is not None and found.frame == worker[0]
    assert found.text() == "input: 100 % of the samples of its child processes in decode (data.py:40); peers 0 %"
    alone = difference(slow, [rank(0, (20, COMPUTE), waits=180)])
    assert alone is not None and alone.frame == worker[0], "peers need not tell of their workers"
