"""What stacks cost: the rank that is sampled, the rank that nobody asks, and the answer about a job that hangs."""

import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable

from common.figures import Figure, quartiles, show

from laggard.locate.stacked import with_stacks
from laggard.model import Culprit, Location, Verdict, Window
from laggard.rankfile.layout import LIVE_WORDS
from laggard.stacks.sampled import STALLED, Counted, Frame, Sampled, Thread, decode, encode
from laggard.trainer_hooks.stacks.sampler import Sampler
from laggard.trainer_hooks.stacks.watch import About, StackWatch

DEPTH = 40  # frames of a training thread within a model of nested modules
THREADS = 24  # of a process with a data loader's, a logger's and torch's own
SAMPLES = 200
SECONDS = 10.0
RANKS = 1024
WORDS = memoryview(array("q", [0] * LIVE_WORDS))


def _train(depth: int, until: threading.Event) -> None:
    if depth:
        return _train(depth - 1, until)
    while not until.is_set():
        sum(range(500))


def _beside_a_training(act: Callable[[int], list[Figure]]) -> list[Figure]:
    """Calls act(ident) beside a thread that trains and others that wait."""
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(THREADS)]
    training = threading.Thread(target=_train, args=(DEPTH, stop))
    for thread in (*threads, training):
        thread.start()
    try:
        return act(training.ident or 0)
    finally:
        stop.set()
        for thread in (*threads, training):
            thread.join()


def sampling(training: int) -> list[Figure]:
    """The CPU time of SAMPLES samples in SECONDS, and of a beat in which nobody asks."""
    spent = []
    for _ in range(3):
        sampler = Sampler(lambda: training, lambda: WORDS, tuple)
        for _ in range(SAMPLES):
            time.sleep(SECONDS / SAMPLES / 10)  # ten times as often: the CPU time of one is the same
            sampler.take()
        spent.append(100 * sampler.cpu_seconds / SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        about = About("j", 0, "n", f"{folder}/1.stacks", (f"{folder}/.ask", f"{folder}/0/.ask"), frozenset({0}))
        watch = StackWatch(about, lambda: training, lambda: WORDS, tuple)
        beats = []
        for _ in range(2000):
            began = time.thread_time_ns()
            watch.beat()
            beats.append((time.thread_time_ns() - began) / 1e3)
    return [
        quartiles(f"{SAMPLES} samples in {SECONDS:g} s, share of a core", spent, "%", 1.0),
        quartiles("a beat in which nobody asks, CPU time", beats, "us"),
    ]


def hang() -> Figure:
    """The answer about RANKS ranks, from what they wrote."""
    library = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waits = (Frame("all_reduce", library, 9), *(Frame(f"f{n}", "/home/u/train.py", n) for n in range(DEPTH)))
    stuck = (Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171), *waits[1:])
    told = [
        encode(
            Sampled("j", rank, "n", 1, STALLED, 1.0, 0.0, (Thread("m", (Counted(1, stuck if rank == 9 else waits),)),))
        )
        for rank in range(RANKS)
    ]
    location = Location(Verdict.FAIL, "j", RANKS, RANKS, Window(), None, (Culprit("hung", (9,)),), ())
    seconds = []
    for _ in range(5):
        began = time.process_time()
        found = with_stacks(location, map(decode, told)).culprits[0].stack
        assert found is not None and found.place.startswith("Queue.get"), found
        seconds.append(time.process_time() - began)
    return quartiles(f"the answer of {RANKS} ranks, CPU time", seconds, "s", 5.0)


def main() -> int:
    sys.setswitchinterval(0.005)
    return 0 if show("Stacks", [*_beside_a_training(sampling), hang()]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
