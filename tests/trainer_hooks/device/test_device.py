"""Times measured on a device that runs behind the host. Ranks are threads, each with a lazy device of its own
(support/lazy_device.py) and a real recorder, rank file and recording; a collective is over once all have come."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import pytest
from support.lazy_cuda_device import INDEX, LazyCudaDevice
from support.lazy_device import Collective, LazyDevice, Meeting, Network, as_torch, takes
from support.lazy_torch import LazyTensor
from support.lazy_training import StubGroups

from laggard.rankfile import RankFileReader
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.device import cuda
from laggard.trainer_hooks.device.clock import MARK_LIMIT
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.output.rank_file import RankFileSink
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.recording_folder import Identity, header
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.session import device_finder

CALL = CollectiveMethod("all_reduce", 0)
TIMEOUT = 300
MS = 0.0025  # a "millisecond" of these tests: long enough for a host that launches, to be ahead of its device


class Rank:
    """What one rank trains with. `reduce` is the hooked collective."""

    def __init__(self, number: int, directory: Path, run: Collective, **device: Any) -> None:
        self.number = number
        self.device = LazyDevice(**device)
        self.gpu = LazyCudaDevice(self.device)
        who = Identity("job", number, number, 3, "n0", None, 0)
        writer = RankFileWriter(str(directory / f"ranks-{number}"), header(who))
        self.recording = directory / f"rank-{number}.jsonl"
        sinks = [RankFileSink(writer), RecordingSink(str(directory), who)]
        self.calls: DeviceCollectives | None = None
        self.recorder = Recorder(sinks, writer.words, self._find)
        self.file = writer.path
        network = Network(self.device, run)
        self.reduce = self.hooked(network.allreduce)
        hook_waits(network.work_class, self.recorder)

    def _find(self, recorder: Recorder) -> DeviceCollectives | None:
        self.calls = self.calls or DeviceCollectives(self.gpu, recorder)
        return self.calls

    def hooked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """torch.distributed's function over a process group's method: of a group, tensors and options."""
        return as_torch(instrument(method, CALL, self.recorder, StubGroups(), "allreduce"))  # type: ignore[arg-type]

    def phase(self, phase: int, seconds: float = 0.0, then: Callable[[], object] = lambda: None) -> None:
        self.recorder.enter(phase)
        if seconds:
            self.device.work(seconds)
        then()
        self.recorder.leave()

    def end_step(self) -> None:
        self.recorder.end_step(self.recorder.step + 1)

    def finish(self) -> Recorded:
        self.device.synchronize()
        self.recorder.close()
        self.gpu.check()
        records = [json.loads(line) for line in self.recording.read_text().splitlines()]
        with RankFileReader(self.file) as file:
            assert file.counters() is None or file.counters().errors == 0
            return Recorded(
                [it for it in records if it.get("kind") == "collective"],
                [Step(it.phases, it.waited / 1e9, (it.end - it.start) / 1e9) for it in file.steps()],
            )


class Step(NamedTuple):
    phases_ns: tuple[int, ...]
    waited: float
    seconds: float

    @property
    def own(self) -> float:
        return sum(self.phases_ns) / 1e9


class Recorded(NamedTuple):
    collectives: list[dict[str, Any]]
    steps: list[Step]


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., list[Recorded]]:
    """Runs `train` on each rank, all at once. A collective takes `transfer` seconds after the last has come."""

    def run(train: Callable[[Rank], None], ranks: int = 3, transfer: float = 4 * MS, **device: Any) -> list[Recorded]:
        meet = Meeting(ranks, transfer, TIMEOUT)
        seen: dict[int, Any] = {}

        def live(number: int) -> None:
            try:
                rank = Rank(number, tmp_path, meet, **device)
                train(rank)
                seen[number] = rank.finish()
            except BaseException as error:
                meet.abort()
                seen[number] = error

        threads = [threading.Thread(target=live, args=(number,)) for number in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        for result in seen.values():
            if isinstance(result, BaseException):
                raise result
        return [seen[number] for number in range(ranks)]

    return run


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A rank alone: its collectives take 4 ms."""
    one = Rank(0, tmp_path, takes(4 * MS))
    yield one
    one.gpu.check()
    one.recorder.close()


def about(expected: float) -> Any:
    """Times that differ in these tests differ by 15 "ms" and more; a busy machine adds some to each."""
    return pytest.approx(expected, abs=7 * MS)


def usual(steps: list[Step], of: Callable[[Step], float]) -> float:
    """The lower quartile of the steps without the first: sleeps and hand-overs are sometimes late, and never early."""
    return quantiles([of(step) for step in steps[1:]], n=4, method="inclusive")[0]


@pytest.mark.slow
@pytest.mark.parametrize("first_to_launch", [0, 1, 2])
def test_who_is_late_is_decided_on_the_device_and_not_by_the_hosts_launches(
    job: Callable[..., list[Recorded]], first_to_launch: int
) -> None:
    has_launched = threading.Event()

    def train(rank: Rank) -> None:
        if rank.number != first_to_launch:
            has_launched.wait(TIMEOUT)
        for _ in range(7):
            rank.phase(FORWARD, 5 * MS)
            rank.phase(BACKWARD, 30 * MS if rank.number == 1 else 10 * MS, lambda: rank.reduce(LazyTensor(), "a"))
            rank.phase(OPTIMIZER, 2 * MS)
            rank.end_step()
            has_launched.set()

    # the device's clocks are an hour off and drift, each in its own way
    seen = job(train, clock_offset=3_600_000_000_000, drift=5e-5)
    for number, rank in enumerate(seen):
        assert len(rank.steps) == len(rank.collectives) == 7
        backward = usual(rank.steps, lambda step: step.phases_ns[BACKWARD] / 1e9)
        assert backward == about(30 * MS if number == 1 else 10 * MS)
        assert usual(rank.steps, lambda step: step.phases_ns[FORWARD] / 1e9) == about(5 * MS)
        assert usual(rank.steps, lambda step: step.waited) == about(4 * MS if number == 1 else 24 * MS)
    matched = list(zip(*(rank.collectives for rank in seen), strict=True))
    for several in matched:
        assert {it["clock"] for it in several} == {"device"}
        assert all(it["issued"] <= it["start"] <= it["end"] for it in several)
    latest = [
        max(several, key=lambda it: it["start"])["rank"] for several in matched[1:]
    ]  # all hosts have started by then
    assert latest.count(1) >= 4, f"the last rank to arrive, of each collective: {latest}"
    ends = [[it["end"] for it in several] for several in matched]
    assert median(max(each) - min(each) for each in ends) < 10 * MS, "the devices' clocks differ from the host's"
    launched = [rank.collectives[0]["issued"] for rank in seen]
    assert launched.index(min(launched)) == first_to_launch


def test_training_on_a_stream_of_the_users_own(rank: Rank) -> None:
    with rank.device.on(rank.device.new_stream()):
        for _ in range(6):
            rank.phase(BACKWARD, 10 * MS, lambda: rank.reduce(LazyTensor(), "a"))
            rank.end_step()
        rank.device.synchronize()
        seen = rank.finish()
    assert usual(seen.steps, lambda step: step.waited) == about(4 * MS)
    assert usual(seen.steps, lambda step: step.own) == about(10 * MS)


@pytest.mark.slow
@pytest.mark.parametrize(("computed", "exposed"), [(30 * MS, 0.0), (0.0, 20 * MS)])
def test_input_counts_where_the_device_had_to_wait_for_it(rank: Rank, computed: float, exposed: float) -> None:
    for _ in range(6):
        rank.phase(INPUT, 0.0, lambda: time.sleep(20 * MS))
        rank.phase(FORWARD, computed)
        rank.end_step()
    steps = rank.finish().steps
    assert usual(steps, lambda step: step.phases_ns[INPUT] / 1e9) == about(exposed)
    assert usual(steps, lambda step: step.phases_ns[FORWARD] / 1e9) == about(computed)


@pytest.mark.slow
def test_collectives_of_the_host_keep_the_hosts_clock(rank: Rank) -> None:
    """gloo on tensors in the host's memory, in a job that computes on a device: it blocks the caller."""

    class Work:
        def wait(self) -> None:
            time.sleep(10 * MS)

    hook_waits(Work, rank.recorder)
    blocking = rank.hooked(lambda group, tensors, options: time.sleep(10 * MS))
    pending = rank.hooked(lambda group, tensors, options: Work())
    for _ in range(6):
        rank.phase(FORWARD, 30 * MS)
        rank.phase(BACKWARD, 0.0, lambda: blocking(LazyTensor(-1), "a"))  # the device is busy: it waits for nothing
        rank.device.synchronize()
        rank.phase(OPTIMIZER, 0.0, lambda: pending(LazyTensor(-1), "a"))
        rank.end_step()
    seen = rank.finish()
    assert {it["clock"] for it in seen.collectives} == {"host"} and len(seen.collectives) == 12
    assert all(it["waited"] >= 10 * MS and it["issued"] == it["start"] for it in seen.collectives)
    assert usual(seen.steps, lambda step: step.waited) == about(10 * MS)
    assert usual(seen.steps, lambda step: step.own) == about(30 * MS)


def test_a_graphs_capture_is_left_alone_and_logged(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    runtime = rank.gpu.lazy.runtime

    def communicate() -> None:
        rank.phase(BACKWARD, 0.0, lambda: rank.reduce(LazyTensor(), "a"))
        rank.phase(BACKWARD, 0.0, lambda: rank.reduce(LazyTensor(), "a"))

    runtime.set_device(INDEX)  # a capture that does not begin in Python is asked about: on the current device
    for number in range(4):
        rank.phase(FORWARD, 5 * MS)
        if number == 1:
            with rank.device.on(rank.device.new_stream()) as stream:
                runtime.stream_begin_capture(stream)
                communicate()  # a mark or a question from here on would end the capture with an error
                runtime.stream_end_capture(stream)
        else:
            communicate()
        rank.phase(OPTIMIZER, 5 * MS)
        rank.end_step()
    assert rank.calls is not None and rank.calls.captured == 2
    seen = rank.finish()
    assert len(seen.steps) == 4 and len(seen.collectives) == 6
    assert [record.message for record in caplog.records if "CUDA graphs" in record.message] != []
    assert 10 * MS <= seen.steps[2].own < 1


@pytest.mark.slow
def test_a_device_that_stands_still_costs_nothing_and_its_collective_is_in_flight(rank: Rank) -> None:
    reduce = rank.hooked(lambda group, tensors, options: None)
    rank.phase(FORWARD, 1 * MS)
    gate = rank.device.block()
    began = time.perf_counter()
    for _ in range(9000):
        reduce(LazyTensor(), "a")
    for _ in range(50):
        rank.phase(FORWARD)
        rank.end_step()
    each = (time.perf_counter() - began) / 9000
    with RankFileReader(rank.file) as file:
        collective = file.live_state().collective
        assert collective is not None and collective.sequence > 8000 and file.lanes()[collective.lane].group == "dp:a"
    assert rank.gpu.made <= MARK_LIMIT and rank.calls is not None
    assert each < 10 * MS, "the host was held up"
    rank.recorder.close()
    with RankFileReader(rank.file) as file:
        assert file.finished() and file.steps() == []
    gate.set()


def test_once_a_device_goes_on_nothing_is_in_flight(rank: Rank) -> None:
    rank.phase(FORWARD, 1 * MS)
    gate = rank.device.block()
    rank.phase(BACKWARD, 0.0, lambda: rank.reduce(LazyTensor(), "a"))
    with RankFileReader(rank.file) as file:
        assert file.live_state().collective is not None
    gate.set()
    rank.device.synchronize()
    rank.phase(OPTIMIZER)
    with RankFileReader(rank.file) as file:
        assert file.live_state().collective is None


def test_what_is_lost_with_too_much_in_flight_is_counted_and_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "MARK_LIMIT", 64)
    rank = Rank(0, tmp_path, takes(0.0))

    def step(collectives: int) -> None:
        rank.phase(FORWARD)
        for _ in range(collectives):
            rank.reduce(LazyTensor(), "a")
        rank.phase(OPTIMIZER, 2 * MS)
        rank.end_step()
        rank.device.synchronize()

    step(3)
    gate = rank.device.block()
    rank.phase(FORWARD)
    for _ in range(100):
        rank.reduce(LazyTensor(), "a")
    gate.set()
    rank.phase(OPTIMIZER)
    rank.end_step()
    rank.device.synchronize()
    for _ in range(3):
        step(3)
    assert rank.gpu.made == 64 and rank.recorder.totals.lost == 100
    seen = rank.finish()
    assert len(seen.steps) == 4 and len(seen.collectives) == 12
    assert all(it.waited >= 0 and min(it.phases_ns) >= 0 and it.seconds < 100 for it in seen.steps)


def test_a_collective_that_never_ended_has_no_end(rank: Rank) -> None:
    rank.phase(FORWARD)
    rank.reduce(LazyTensor(), "a", async_op=True)
    for _ in range(3):
        rank.phase(FORWARD, 1 * MS)
        rank.end_step()
    rank.device.synchronize()
    gate = rank.device.block()
    rank.phase(FORWARD, 0.0, lambda: rank.reduce(LazyTensor(), "a"))
    rank.recorder.close()
    gate.set()
    records = [json.loads(line) for line in rank.recording.read_text().splitlines()]
    assert [it["end"] for it in records if it.get("kind") == "collective"] == [None, None]


def test_a_device_that_fails_is_asked_no_more(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(mark: Any) -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    rank.phase(FORWARD, 1 * MS)
    rank.end_step()
    rank.gpu.done = refuse  # type: ignore[method-assign]
    results = []
    for _ in range(3):
        rank.phase(FORWARD, 1 * MS, lambda: results.append(rank.reduce(LazyTensor(), "a")))
        rank.end_step()
    rank.device.synchronize()
    rank.recorder.close()
    with RankFileReader(rank.file) as file:
        assert file.counters().errors == 1 and len(file.steps()) == 2
        assert all(0 <= step.end - step.start < 10**9 for step in file.steps())
    assert results == [None] * 3
    assert len([it for it in caplog.records if "host's clock" in it.message]) == 1


def test_the_users_exceptions_pass_and_no_mark_is_lost(rank: Rank) -> None:
    class Broken:
        def wait(self) -> None:
            raise ConnectionError("a peer is gone")

    def refuse(group: Any, tensors: Any, options: Any) -> None:
        raise ConnectionError("a peer is gone")

    hook_waits(Broken, rank.recorder)

    rank.phase(FORWARD)
    assert rank.hooked(lambda group, tensors, options: "as it was")(object(), "a", async_op=True) == "as it was"
    assert rank.recorder.totals.errors == 1 and rank.recorder.live.device is not None
    for _ in range(50):
        with pytest.raises(ConnectionError):
            rank.hooked(refuse)(LazyTensor(), "a")
        with pytest.raises(ConnectionError):
            rank.hooked(lambda group, tensors, options: Broken())(LazyTensor(), "a", async_op=True).wait()
    assert rank.gpu.made < 10


def test_forked_children_leave_the_device_alone(rank: Rank) -> None:
    rank.phase(FORWARD)
    rank.recorder.close()  # leaves the device alone as disable_after_fork() does, which a child calls
    rank.gpu.record = None  # type: ignore[method-assign,assignment]
    rank.phase(FORWARD, 0.0, lambda: rank.hooked(lambda group, tensors, options: None)(LazyTensor(), "a"))
    rank.end_step()
    assert rank.recorder.totals.errors == 0


def test_without_cuda_the_hosts_clock_is_used() -> None:
    recorder = Recorder([], find_device=device_finder({}))
    recorder.enter(FORWARD)
    recorder.leave()
    recorder.end_step(1)
    assert recorder.live.device is None and recorder.totals.errors == 0
