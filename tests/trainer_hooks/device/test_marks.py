"""How many marks the hooks put into a device's streams, and in which steps."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lazy_device import LAUNCH_NS, Options
from support.lazy_training import KeepingSink, StubGroups, Tensor

from laggard.rankfile.fact_names import TIMED_EVERY
from laggard.rankfile.layout import WORD_ISSUED
from laggard.trainer_hooks.collectives import process_group
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.device import clock, collectives, phases, timeline
from laggard.trainer_hooks.device.collectives import DeviceCollectives
from laggard.trainer_hooks.device.phases import MAX_PERIOD, is_timed
from laggard.trainer_hooks.record import recorder
from laggard.trainer_hooks.record.ending import FACTS
from laggard.trainer_hooks.record.event_log import unread_words
from laggard.trainer_hooks.record.events import BACKWARD, EVALUATION, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder

PHASES = (INPUT, FORWARD, BACKWARD, OPTIMIZER)


class Clock:
    """The host's clock, in the places where the hooks read it: it goes on where the tests say so. A reading takes
    100 ns."""

    def __init__(self) -> None:
        self.now = 10**12

    def read(self) -> int:
        self.now += 100
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in (clock, collectives, phases, process_group, recorder, timeline):
        monkeypatch.setattr(module, "clock", CLOCK.read)
    yield
    FACTS.set(TIMED_EVERY, None)


def spin(nanoseconds: int) -> None:
    CLOCK.now += nanoseconds


class Mark:
    def __init__(self, stream: int, serial: int) -> None:
        self.stream, self.serial, self.at = stream, serial, CLOCK.read()


class Events:
    """A device whose marks take the host so long, and are passed at once."""

    index = 0

    def __init__(self, nanoseconds: int) -> None:
        self.nanoseconds, self.marks, self.current, self.stands = nanoseconds, 0, 0, False

    def stream(self) -> int:
        return self.current

    def capturing(self) -> bool:
        return False

    def record(self) -> Mark:
        spin(self.nanoseconds)
        self.marks += 1
        return Mark(self.current, self.marks)

    def done(self, mark: Mark) -> bool:
        return not self.stands

    def nanoseconds_between(self, earlier: Mark, later: Mark) -> int:
        return later.at - earlier.at

    def release(self, mark: Mark) -> None:
        mark.serial = 0

    def carries(self, tensors: Any, group: Any) -> bool:
        return True

    def other_index(self, tensors: Any) -> int | None:
        return None

    def runs_backward(self) -> bool:
        return False


def fewest_marks(events: Events, pause: int, streams: int = 1) -> int:
    """The fewest marks of a step of four phases in which something is launched, with so many nanoseconds between two of
    them. `streams`: which the phases take turns on."""
    recorder = Recorder([], find_device=lambda it: DeviceCollectives(events, it))
    counts = []
    for step in range(16):  # each has marks, before it is known what they cost
        before = events.marks
        for number, phase in enumerate(PHASES):
            events.current = number % streams
            recorder.enter(phase)
            spin(LAUNCH_NS)
            recorder.leave()
            spin(pause)
        recorder.end_step(step + 1)
        counts.append(events.marks - before)
    assert recorder.totals.errors == 0
    return min(counts[5:])  # of many: the machine may do other work between two phases


@pytest.mark.parametrize(
    ("mark_takes", "pause", "marks"),
    [(9000, 3000, 5), (9000, 6000, 8), (500, 1000, 5), (500, 3000, 8)],
    ids=["slow-host-soon", "slow-host-later", "fast-host-soon", "fast-host-later"],
)
def test_a_slow_host_has_longer_for_what_stands_between_two_boundaries(mark_takes: int, pause: int, marks: int) -> None:
    assert fewest_marks(Events(mark_takes), pause) in (marks, marks - 1)  # the first may share the last step's


def test_a_phase_on_another_stream_has_a_mark_of_its_own() -> None:
    assert fewest_marks(Events(9000), pause=0, streams=2) == 8


class Training:
    """Steps of a forward pass, a backward pass with collectives, and an update, each with launches of its own."""

    def __init__(self, mark_ns: int = 3000, is_async: bool = False) -> None:
        self.events, self.kept, self.options = Events(mark_ns), KeepingSink(), Options(is_async)
        self.recorder = Recorder([self.kept], find_device=lambda it: DeviceCollectives(self.events, it))
        work = type("Work", (), {"wait": lambda self: None})
        hook_waits(work, self.recorder)
        self.reduce = instrument(
            lambda group, tensors, options: spin(LAUNCH_NS) or work(), CollectiveMethod("all_reduce", 0),
            self.recorder, StubGroups(), "allreduce",  # type: ignore[arg-type]
        )  # fmt: skip
        self.marks: list[int] = []

    def step(self, collectives: int, between: Callable[[], object] = lambda: spin(LAUNCH_NS), more_ns: int = 0) -> None:
        before = self.events.marks
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            self.recorder.enter(phase)
            spin(LAUNCH_NS)
            for _ in range(collectives if phase == BACKWARD else 0):
                self.reduce("a", [Tensor()], self.options).wait()
                between()
            self.recorder.leave()
            spin(LAUNCH_NS)
        spin(more_ns)
        self.recorder.end_step(self.recorder.step + 1)
        self.marks.append(self.events.marks - before)

    def done(self) -> int:
        """The collectives that are over, as the rank file counts them."""
        self.recorder.drain()
        return sum(self.recorder.totals.lanes[::3])


def test_collectives_one_after_the_other_share_a_mark_at_each_bound() -> None:
    together, apart = Training(), Training()
    for _ in range(16):
        together.step(6, between=lambda: None)
        apart.step(6)
    assert min(apart.marks[5:]) == 6 + 2 * 6, "three phases, and each collective by itself"
    assert min(together.marks[5:]) <= 6 + 7
    assert together.recorder.totals.errors == apart.recorder.totals.errors == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_short_steps_have_marks_in_a_part_of_them_and_the_record_says_so(is_async: bool) -> None:
    training = Training(is_async=is_async)
    for _ in range(640):
        training.step(6)
    assert FACTS.get(TIMED_EVERY) == MAX_PERIOD, "marks of 3 us are far more than their share of such a step"
    later = training.marks[320:]
    assert sorted(set(later))[0] == 1, "a step without marks within it has one at its end"
    assert sum(later) / len(later) < 2
    timed = [step.step for step in training.kept.steps]
    assert [step for step in timed if step >= 320] == [step for step in range(320, 640) if is_timed(step, MAX_PERIOD)]
    assert training.done() == training.recorder.launched() == 6 * 640
    assert training.recorder.totals.errors == training.recorder.totals.lost == 0
    assert max(training.recorder.recent_launches()) == 6 * 640, "else what C++ makes beside it is miscounted"


def test_an_evaluation_after_a_step_without_marks_shows_nothing_in_flight() -> None:
    training, words = Training(), unread_words()
    training.recorder.add_sinks((), words)
    while training.recorder.step < 320 or any(is_timed(training.recorder.step + it, MAX_PERIOD) for it in (0, 1)):
        training.step(6)
    training.events.stands = True
    training.step(6)
    assert words[WORD_ISSUED], "the device has yet to come past the last of them"
    training.events.stands = False
    training.recorder.enter(EVALUATION)
    assert not words[WORD_ISSUED]


@pytest.mark.parametrize(
    ("mark_us", "milliseconds", "period"),
    [(3, 1, 32), (3, 5, 8), (3, 12, 4), (3, 60, 1), (30, 4, 32), (30, 10, 16), (30, 60, 2), (30, 150, 1)],
)
def test_the_longer_the_steps_the_more_of_them_have_marks(mark_us: int, milliseconds: int, period: int) -> None:
    """At least one in 0.2 s, however much the marks cost."""
    training = Training(mark_us * 1000)
    for _ in range(200):
        training.step(20, more_ns=milliseconds * 1_000_000)
    assert (FACTS.get(TIMED_EVERY) or 1) == period


@given(st.integers(0, 1 << 31), st.integers(0, 5), st.integers(0, 5))
def test_what_a_rank_times_all_with_shorter_periods_time(step: int, one: int, other: int) -> None:
    longer, shorter = 1 << max(one, other), 1 << min(one, other)
    assert is_timed(step, 1)
    assert is_timed(step, shorter) or not is_timed(step, longer)


@pytest.mark.parametrize("period", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("rhythm", [1, 8, 10, 100])
def test_timed_steps_lie_evenly_whatever_a_script_does_each_so_many_steps(period: int, rhythm: int) -> None:
    count = 128 * period
    timed = [step for step in range(count) if is_timed(step * rhythm, period)]
    assert 122 <= len(timed) <= 134
    if rhythm == 1:
        assert max(later - earlier for earlier, later in pairwise(timed)) <= 2 * period


def test_a_wait_in_a_small_collective_is_seen_like_any_other() -> None:
    """A barrier of eight bytes is where ranks wait for one that is late: its size tells nothing of the wait."""
    training = Training()
    training.step(1)
    training.recorder.enter(FORWARD)
    training.reduce("a", [Tensor()], training.options).wait()
    training.recorder.leave()
    training.recorder.end_step(2)
    training.recorder.drain()
    assert training.kept.on_device == 2 and training.kept.steps[1].waited > LAUNCH_NS // 2
