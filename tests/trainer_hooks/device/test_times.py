"""The steps recorded from a device's times, compared with a simulation by the tick: any program, any lag of the
device's answers."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from support.lazy_device import Options, launch
from support.lazy_training import KeepingSink, StubGroups, Tensor

from laggard.rankfile import Lane
from laggard.trainer_hooks.collectives.process_group import hook_calls, hook_waits
from laggard.trainer_hooks.device import phases
from laggard.trainer_hooks.device.clock import DRIFT_PER_MILLION, OffsetBounds
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.record.events import BACKWARD
from laggard.trainer_hooks.record.recorder import Recorder

MAIN, SIDES = 0, (1, 2)


class Mark:
    def __init__(self, stream: int, serial: int, at: int, passed: int) -> None:
        self.stream, self.serial, self.at, self.passed = stream, serial, at, passed


class TickDevice:
    """Three streams whose time is simulated, in ticks of a nanosecond. `lags`: after how many questions a mark is
    reported as passed. Stands in for a GPU whose every duration is known."""

    def __init__(self, lags: Sequence[int]) -> None:
        self.now = 0  # of the host
        self.free = [0, 0, 0]  # until when each stream is busy
        self.current = MAIN
        self.stalled: list[range] = []  # when the main stream stood still for a collective
        self.joins: list[set[int]] = []  # when it waited for another stream: the ticks in which collectives ran there
        self.overlapped: list[range] = []  # when collectives ran on other streams than the main one
        self.in_use: set[int] = set()
        self._lags = itertools.cycle(lags)
        self._answers: dict[int, int] = {}
        self._serials = itertools.count(1)

    def work(self, ticks: int) -> None:
        self.free[self.current] = max(self.free[self.current], self.now) + ticks

    def collective(self, ticks: int) -> int:
        """Its end; it starts when the present stream is ready."""
        start = max(self.free[self.current], self.now)
        if self.current != MAIN:
            self.overlapped.append(range(start, start + ticks))
        return start + ticks

    def wait_until(self, end: int) -> None:
        start = max(self.free[self.current], self.now)
        if self.current == MAIN:
            self.stalled.append(range(start, end))
        self.free[self.current] = max(start, end)

    def join(self) -> None:
        start, end = max(self.free[MAIN], self.now), max(self.free[side] for side in SIDES)
        self.joins.append(set(range(start, end)).intersection(itertools.chain(*self.overlapped)))
        self.free[MAIN] = max(start, end)

    def stream(self) -> int:
        return self.current

    def capturing(self) -> bool:
        return False

    def record(self) -> Mark:
        self.now += 1
        passed = self.free[self.current] = max(self.free[self.current], self.now)
        mark = Mark(self.current, next(self._serials), self.now, passed)
        self.in_use.add(mark.serial)
        self._answers[mark.serial] = next(self._lags)
        return mark

    def done(self, mark: Mark) -> bool:
        self._answers[mark.serial] -= 1
        return self._answers[mark.serial] < 0

    def nanoseconds_between(self, earlier: Mark, later: Mark) -> int:
        return later.passed - earlier.passed

    def release(self, mark: Mark) -> None:
        self.in_use.remove(mark.serial)  # KeyError: released twice
        mark.serial = 0

    def carries(self, tensors: Any, group: Any) -> bool:
        return True


class CheckingSink(KeepingSink):
    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        assert all(word in launched for word in numbers[::5])


class Program:
    """Runs drawn actions on a device, hooked as a training process is."""

    def __init__(self, lags: Sequence[int]) -> None:
        self.device, self.kept = TickDevice(lags), CheckingSink()
        self.calls: DeviceCollectives | None = None
        self.recorder = Recorder([self.kept], find_device=self._find)
        self.handles: list[Any] = []
        group_class, work_class = torch_like(self.device)
        hook_calls(group_class, self.recorder, StubGroups())  # type: ignore[arg-type]
        hook_waits(work_class, self.recorder)
        self.group = group_class()

    def _find(self, recorder: Recorder) -> DeviceCollectives:
        self.calls = DeviceCollectives(self.device, recorder)
        return self.calls

    def reduce(self, ticks: int, async_op: bool = False) -> Any:
        """As torch.distributed's function."""
        self.group.ticks = ticks
        work = self.group.allreduce([Tensor()], Options(async_op))
        return work if async_op else work.wait()

    def act(self, action: str, ticks: int) -> None:
        device = self.device
        launch()
        if action == "work":
            device.work(ticks)
        elif action == "host":
            device.now += ticks
        elif action == "reduce":
            self.reduce(ticks)
        elif action == "launch":
            self.handles.append(self.reduce(ticks, async_op=True))
        elif action == "wait" and self.handles:
            self.handles.pop().wait()
        elif action == "other stream":
            device.current = SIDES[ticks % 2]
            device.work(ticks % 30)
            self.reduce(ticks)
            device.current = MAIN
        elif action == "batch":
            self._batch(ticks)
        elif action == "native" and self.calls is not None:
            self._native(ticks)
        elif action == "functional" and self.calls is not None and self.device.current == MAIN:
            self._functional(ticks)
        elif action == "join" and self.calls is not None:
            self.calls.time_stream_wait(device.join)

    def _batch(self, ticks: int) -> None:
        """As torch's coalesced calls: one work stands for all of a batch."""
        self.group._start_coalescing()
        for _ in range(1 + ticks % 3):
            self.reduce(ticks, async_op=True)
        self.group._end_coalescing().wait()

    def _native(self, ticks: int) -> None:
        """As DDP's reducer does it in C++."""
        assert self.calls is not None
        log = self.recorder.lane(Lane("broadcast", "dp", "dp"), (0, 1))
        before, issued = self.calls.mark(), self.device.now
        _, before = self.calls.take(issued, set(), before)  # nothing was handed to it by Python
        self.device.wait_until(self.device.collective(ticks))
        launches = [(log.next_word(), log, issued, 8, 0) for _ in range(1 + ticks % 2)]
        self.calls.log_native(launches, before, self.calls.mark())

    def _functional(self, ticks: int) -> None:
        """As C++ makes functional collectives, for the last of which Python waits."""
        assert self.calls is not None
        log = self.recorder.lane(Lane("all_reduce", "tp", "tp"), (0, 1))
        launched = self.device.now
        end = self.device.collective(ticks)
        self.calls.time_native_wait(self.device.wait_until, end)
        self.calls.log_ended([(log.next_word(), log, launched, 8, 0)], self.device.now)


def torch_like(device: TickDevice) -> tuple[Any, Any]:
    """Classes in the manner of ProcessGroup and Work. A synchronous call runs on the present stream."""

    class Work:
        def __init__(self, end: int) -> None:
            self.end = end

        def wait(self) -> None:
            device.wait_until(self.end)

    class Group:
        ticks = 0
        batch: list[int] | None = None

        def allreduce(self, tensors: Any, options: Any) -> Any:
            end = device.collective(self.ticks)
            if self.batch is not None:
                self.batch.append(end)
                return Work(end) if self.ticks % 2 else None
            if not options.asyncOp:
                device.wait_until(end)
            return Work(end)

        def _start_coalescing(self) -> None:
            self.batch = []

        def _end_coalescing(self) -> Any:
            batch, self.batch = self.batch, None
            return Work(max(batch or [0]))

    return Group, Work


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["work", "host", "reduce", "launch", "wait", "other stream", "batch", "native", "functional", "join"]
        ),
        st.integers(1, 300),
    ),
    max_size=12,
)


@given(st.lists(ACTIONS, min_size=1, max_size=3), st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_a_step_is_own_time_and_the_time_that_the_main_stream_waited_for_collectives(
    steps: list[list[tuple[str, int]]], lags: list[int]
) -> None:
    program = Program(lags)
    check_steps(program, steps, [True] * len(steps), carried=False)


@given(
    st.lists(st.tuples(ACTIONS, st.booleans()), min_size=2, max_size=5),
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.booleans(),
)
def test_steps_without_marks_have_no_record_and_the_others_have_their_true_times(
    steps: list[tuple[list[tuple[str, int]], bool]], lags: list[int], carried: bool
) -> None:
    program = Program(lags)
    timed = [True, *(each for _, each in steps[1:]), True]
    with mock.patch.object(phases, "is_timed", lambda step, period: timed[step]):
        check_steps(program, [actions for actions, _ in steps], timed[:-1], carried)
    assert sum(program.recorder.totals.lanes[::3]) == program.recorder.launched()


def check_steps(program: Program, steps: list[list[tuple[str, int]]], timed: list[bool], carried: bool) -> None:
    """Runs the steps, of which the recorder times some. `carried`: a step waits for what the one before it launched."""
    device, recorder = program.device, program.recorder
    spans = []
    for number, actions in enumerate(steps):
        late, program.handles = program.handles, []
        start = max(device.now, device.free[MAIN]) if number == 0 else spans[-1][1]
        recorder.enter(BACKWARD)
        for action, ticks in actions:
            program.act(action, ticks)
        while late:
            late.pop().wait()
        while program.handles and not (carried and number + 1 < len(steps)):
            program.handles.pop().wait()
        recorder.leave()
        spans.append((start, device.free[MAIN]))
        recorder.end_step(number + 1)
    for _ in range(200):  # the device reports every mark as passed in the end
        program.calls and program.calls.poll()
    recorder.close()

    assert recorder.totals.errors == recorder.totals.lost == 0
    assert len(device.in_use) <= 1, "marks were not released"
    still = set().union(*device.stalled, *device.joins)
    recorded = [number for number in range(len(steps)) if timed[number]]
    assert [step.step for step in program.kept.steps] == recorded
    for number, step in zip(recorded, program.kept.steps, strict=True):
        start, end = spans[number]
        assert step.end - step.start == sum(step.phases) + step.waited
        assert abs(step.end - step.start - (end - start)) <= 2
        expected = len([tick for tick in still if start <= tick < end])
        marks = 2 * len(device.stalled + device.joins) + 2  # between two marks a tick of the host's own passes
        assert abs(step.waited - expected) <= marks, (step.waited, expected)


@given(
    st.integers(-(10**15), 10**15),
    st.floats(-DRIFT_PER_MILLION, DRIFT_PER_MILLION),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**8), st.integers(0, 10**7)), min_size=1, max_size=40),
)
def test_the_clocks_offset_is_within_its_bounds(offset: int, drift: float, marks: list[tuple[int, int, int]]) -> None:
    bounds, host, shifted = None, 0, 0
    for pause, until_passed, until_seen in marks:
        host += pause
        passed = host + until_passed
        device = passed - offset - round(passed * drift / 1e6)  # what the device's clock showed then
        if bounds is None:
            bounds, shifted = OffsetBounds(host), host - device  # the first mark starts the mapped clock
        bounds.not_before(device + shifted, host)
        bounds.not_after(device + shifted, passed + until_seen)
        host = passed + until_seen
        shifted += bounds.take_correction()
        late = passed - (device + shifted)
        drifted = (until_passed + until_seen) * DRIFT_PER_MILLION / 1e6 + 2 * len(marks)  # and rounded
        assert -drifted <= late <= bounds.width + drifted
        assert late <= until_passed + drifted, "a device that had run dry passed the mark at once"
