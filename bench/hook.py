"""What the hook costs the training thread, on torch's fake process group: no network, only Python is timed.

Per collective: torch.distributed's call with the hook in it less the same call without, in interleaved pairs; the
hook's whole work is in it, the hand-on to a real rank file included. Beside it DeepSpeed's own comms_logger.
"""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
import time
from collections.abc import Callable

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "8")

import deepspeed
import deepspeed.comm
import torch
import torch.distributed
from deepspeed.comm import comm
from deepspeed.comm.torch import TorchBackend
from figures import Figure, interleaved, quartiles, show
from torch.testing._internal.distributed.fake_pg import FakeStore

from laggard.rankfile import RankFileWriter
from laggard.trainer_hooks.collectives import CALLS as METHODS
from laggard.trainer_hooks.collectives import hook
from laggard.trainer_hooks.groups import Groups
from laggard.trainer_hooks.identity import header, identify
from laggard.trainer_hooks.recorder import BACKWARD, FORWARD, INPUT, OPTIMIZER, Recorder
from laggard.trainer_hooks.sinks import RankFileSink

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is to be compiled for this

CALLS = 2000  # of a collective in one timing
STEPS = 500


def set_up(directory: str) -> Recorder:
    """A world of eight ranks that exists in this process alone, and a recorder on a rank file as in training."""
    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    comm.cdb = TorchBackend("fake", datetime.timedelta(seconds=10), None)
    writer = RankFileWriter(directory, header(identify(os.environ)))
    return Recorder([RankFileSink(writer)], writer.words)


class Methods:
    """What the hook replaces in torch's classes, as it is without and with the hook."""

    def __init__(self, recorder: Recorder) -> None:
        distributed = torch.distributed
        self._classes = (distributed.ProcessGroup, distributed.Work, *distributed.Work.__subclasses__())
        self._bare = self._now()
        groups = Groups()
        groups.learn("dp", range(8))
        hook(distributed, recorder, groups)
        self._hooked = self._now()

    def _now(self) -> list[tuple[type, str, object]]:
        names = (*METHODS, "wait", "_start_coalescing", "_end_coalescing")
        return [(each, name, vars(each)[name]) for each in self._classes for name in names if name in vars(each)]

    def put(self, hooked: bool) -> None:
        for owner, name, method in self._hooked if hooked else self._bare:
            setattr(owner, name, method)


def collective(recorder: Recorder, methods: Methods, call: Callable[[], object]) -> list[tuple[float, float]]:
    """Microseconds of one call, bare and hooked, by pairs."""

    def timed(hooked: bool) -> float:
        methods.put(hooked)
        recorder.enter(FORWARD)
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        spent = time.perf_counter() - start
        recorder.leave()
        recorder.end_step(0)
        return spent / CALLS * 1e6

    pairs = interleaved(25, lambda: timed(False), lambda: timed(True))
    methods.put(False)
    return pairs


def collectives(recorder: Recorder) -> list[Figure]:
    tensor, whole, methods = torch.zeros(1024), torch.zeros(8192), Methods(recorder)
    distributed = torch.distributed
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)  # torch 2.13's new name
    cases: list[tuple[str, Callable[[], object], float]] = [
        ("all_reduce", lambda: distributed.all_reduce(tensor), 1.2),
        ("all_gather", lambda: gather(whole, tensor), 1.2),
        ("async all_reduce", lambda: distributed.all_reduce(tensor, async_op=True).wait(), 2.0),
    ]
    figures = []
    for what, call, budget in cases:
        pairs = collective(recorder, methods, call)
        figures.append(quartiles(f"{what}, bare", [bare for bare, _ in pairs], "us"))
        figures.append(quartiles(f"{what}, added by the hook", [hooked - bare for bare, hooked in pairs], "us", budget))
    return figures


def step(recorder: Recorder) -> Figure:
    """A step's phases without collectives: what the hook costs a step, the rank file included."""
    times = []
    for _ in range(15):
        start = time.perf_counter()
        for number in range(STEPS):
            for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
                recorder.enter(phase)
                recorder.leave()
            recorder.end_step(number + 1)
        times.append((time.perf_counter() - start) / STEPS * 1e6)
    return quartiles("a step", times, "us", 20.0)


def comms_logger() -> Figure:
    """DeepSpeed's own logger on the same call. It keeps every latency and sums them anew: it grows with the run."""
    tensor = torch.zeros(1024)

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(100):
            deepspeed.comm.all_reduce(tensor)
        return (time.perf_counter() - start) / 100 * 1e6

    def logged() -> float:
        deepspeed.comm.configure(enabled=True, prof_all=True, verbose=False)
        try:
            return timed()
        finally:
            deepspeed.comm.configure(enabled=False)

    pairs = interleaved(15, timed, logged)
    return quartiles("all_reduce, added by DeepSpeed's comms_logger", [one - bare for bare, one in pairs], "us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        recorder = set_up(directory)
        figures = [*collectives(recorder), step(recorder)]
        errors = recorder.totals.errors
        if not options.no_peers:
            figures.append(comms_logger())
        good = show("The hook's cost to the training thread (fake process group)", figures)
        print(f"\nerrors in the hook: {errors}")
        recorder.close()
    return 0 if good and not errors else 1


if __name__ == "__main__":
    raise SystemExit(main())
