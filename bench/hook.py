"""What the hook costs the training thread, on torch's fake process group: no network, only Python is timed.

A collective's figure is torch.distributed's call with the hook less the same call without it, in interleaved pairs.
The writer thread runs meanwhile; its CPU time is measured by itself, a real rank file included. On a device the events
are torch's and CUDA's work: here they cost nothing, and the hook's part is left. `make gpu-check` has the whole.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "8")

import torch
import torch.distributed
from common.figures import Figure, quartiles, show, undisturbed
from common.scratch import scratch
from torch.testing._internal.distributed.fake_pg import FakeStore

from laggard.rankfile import Lane
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.collectives.groups import ProcessGroups
from laggard.trainer_hooks.collectives.process_group import COLLECTIVE_METHODS, hook
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.output.open_outputs import WriterThread
from laggard.trainer_hooks.output.rank_file import RankFileSink
from laggard.trainer_hooks.output.recording_folder import header, identify
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder


class FreeEvents:
    """A device whose marks cost nothing and are passed at once, so that only the hook's own work is measured."""

    def __init__(self) -> None:
        self._free: list[FreeMark] = []
        self._serial = 0
        self.index = 0

    def stream(self) -> int:
        return 0

    def capturing(self) -> bool:
        return False

    def record(self) -> FreeMark:
        mark = self._free.pop() if self._free else FreeMark()
        self._serial += 1
        mark.serial, mark.at = self._serial, time.perf_counter_ns()
        return mark

    def done(self, mark: FreeMark) -> bool:
        return True

    def nanoseconds_between(self, earlier: FreeMark, later: FreeMark) -> int:
        return later.at - earlier.at

    def release(self, mark: FreeMark) -> None:
        mark.serial = 0
        self._free.append(mark)

    def carries(self, tensors: object, group: object) -> bool:
        return True

    def other_index(self, tensors: object) -> int | None:
        return None

    def runs_backward(self) -> bool:
        return False


class FreeMark:
    __slots__ = ("at", "serial", "stream")

    def __init__(self) -> None:
        self.stream = self.serial = self.at = 0


CALLS = 400  # of a collective in one timing
STEPS = 500
UNTIMED = 1  # a step that has no marks where not all have


class DeviceFinder:
    """Finds a device once `there` is set."""

    def __init__(self) -> None:
        self.there = False

    def find(self, recorder: Recorder) -> DeviceCollectives | None:
        return DeviceCollectives(FreeEvents(), recorder) if self.there else None


def set_up(directory: str, finder: DeviceFinder) -> Recorder:
    """A world of eight ranks that exists in this process alone, and a recorder on a rank file as in training."""
    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    writer = RankFileWriter(directory, header(identify(os.environ)))
    recorder = Recorder([RankFileSink(writer)], writer.words, finder.find)
    WriterThread(recorder).start()
    return recorder


class Methods:
    """What the hook replaces in torch's classes, as it is without and with the hook."""

    def __init__(self, recorder: Recorder) -> None:
        distributed = torch.distributed
        self._classes = (distributed.ProcessGroup, distributed.Work, *distributed.Work.__subclasses__())
        self._bare = self._now()
        groups = ProcessGroups()
        groups.set_role_of_members("dp", range(8))
        hook(distributed, recorder, groups)
        self._hooked = self._now()

    def _now(self) -> list[tuple[type, str, object]]:
        names = (*COLLECTIVE_METHODS, "wait", "_start_coalescing", "_end_coalescing")
        return [(each, name, vars(each)[name]) for each in self._classes for name in names if name in vars(each)]

    def put(self, hooked: bool) -> None:
        for owner, name, method in self._hooked if hooked else self._bare:
            setattr(owner, name, method)


def collective(recorder: Recorder, methods: Methods, call: Callable[[], object], step: int) -> tuple[float, float]:
    """Microseconds of one call, bare and hooked. `step`: the number of the step in which it is made."""

    def timed(hooked: bool) -> float:
        methods.put(hooked)
        recorder.enter(FORWARD)
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        spent = time.perf_counter() - start
        recorder.leave()
        recorder.end_step(step)
        return spent / CALLS * 1e6

    pair = timed(False), timed(True)
    methods.put(False)
    return pair


def collectives(
    recorder: Recorder, methods: Methods, count: int, where: str, sync_budget: float, async_budget: float, step: int = 0
) -> list[Figure]:
    """`count`: of pairs, the cases in turn: a machine that slows for a moment spoils few pairs of each case."""
    tensor, whole = torch.zeros(1024), torch.zeros(8192)
    distributed = torch.distributed
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)  # torch 2.13's new name
    cases: list[tuple[str, Callable[[], object], float]] = [
        ("all_reduce", lambda: distributed.all_reduce(tensor), sync_budget),
        ("all_gather", lambda: gather(whole, tensor), sync_budget),
        ("async all_reduce", lambda: distributed.all_reduce(tensor, async_op=True).wait(), async_budget),
    ]
    rounds = [[collective(recorder, methods, call, step) for _, call, _ in cases] for _ in range(count + 1)][1:]
    figures = []
    for place, (what, _, budget) in enumerate(cases):
        pairs = undisturbed([each[place] for each in rounds])
        counted = f"{what}{where}, bare ({len(pairs)} undisturbed pairs of {count})"
        figures.append(quartiles(counted, [bare for bare, _ in pairs], "us"))
        added = [hooked - bare for bare, hooked in pairs]
        figures.append(quartiles(f"{what}{where}, added by the hook", added, "us", budget))
        ratios = [hooked / bare for bare, hooked in pairs]
        figures.append(quartiles(f"{what}{where}, with the hook, of the bare call", ratios, "times"))
    return figures


def step(recorder: Recorder, where: str) -> Figure:
    """A step's phases without collectives: what the hook costs a step, the rank file included."""
    times = []
    for _ in range(25):
        recorder.drain()  # at thousands of steps a second the writer thread would never catch up
        start = time.perf_counter()
        for number in range(STEPS):
            for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
                recorder.enter(phase)
                recorder.leave()
            recorder.end_step(number + 1)
        times.append((time.perf_counter() - start) / STEPS * 1e6)
    return quartiles(f"a step{where}", times, "us", 20.0)


def in_background(recorder: Recorder) -> list[Figure]:
    """CPU time that the writer thread needs for the events of the training thread."""

    def drained(count: int, append_events: Callable[[], None]) -> float:
        append_events()
        start = time.thread_time()
        recorder.drain()
        return (time.thread_time() - start) / count * 1e6

    def collectives() -> None:
        for number in range(CALLS):
            log = logs[number % len(logs)]
            log.append((log.next_word(), 10**15, 10**15 + 9000, 9000, 4096))

    def steps() -> None:
        for number in range(100):
            for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
                recorder.enter(phase)
                recorder.leave()
            recorder.end_step(number + 1)

    logs = [recorder.lane(Lane(op, "dp", "dp:0-7"), range(8)) for op in ("all_reduce", "all_gather")]
    thread = recorder.events.background
    assert thread is not None
    thread.stop()
    recorder.set_background(thread)  # or the training thread would drain its events itself
    figures = [
        quartiles("writer thread: a collective, CPU time", [drained(CALLS, collectives) for _ in range(25)], "us"),
        quartiles("writer thread: a step, CPU time", [drained(100, steps) for _ in range(25)], "us"),
    ]
    thread.start()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=125, help="of timings of each collective")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        finder, pairs = DeviceFinder(), max(2, options.pairs)
        recorder = set_up(directory, finder)
        methods = Methods(recorder)
        figures = [*collectives(recorder, methods, pairs, "", 1.2, 2.0), step(recorder, ""), *in_background(recorder)]
        finder.there = True
        recorder.end_step(0)
        figures += [*collectives(recorder, methods, pairs, " on a device", 10.0, 10.0), step(recorder, " on a device")]
        where = " on a device, in a step without marks"  # as most are by now, which are so short
        figures += collectives(recorder, methods, pairs, where, 5.0, 5.0, UNTIMED)
        errors = recorder.totals.errors + recorder.totals.lost
        good = show("The hook's cost to the training thread (fake process group)", figures)
        print(f"\nerrors in the hook, and collectives lost: {errors}")
        recorder.close()
    return 0 if good and not errors else 1


if __name__ == "__main__":
    raise SystemExit(main())
