"""Events become steps and counters: whichever thread drains them, in whatever portions, and whatever fails."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import wait_for

from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.output.open_outputs import WriterThread
from laggard.trainer_hooks.record.aggregator import StepTimer
from laggard.trainer_hooks.record.events import (
    BACKWARD,
    BETWEEN_STEPS,
    EVENT_NUMBERS,
    FORWARD,
    OPTIMIZER,
    Sink,
    StepRecord,
    Totals,
)
from laggard.trainer_hooks.record.recorder import Recorder

LANES = tuple(Lane("all_reduce", "dp", f"dp:0-1#{number}") for number in range(60))


class KeepingSink(Sink):
    """A sink that keeps what it is given. `hold`: it hangs in each step until that is set, `holding` says that it does;
    `gave_up`: whether it went on by itself, after five minutes."""

    def __init__(self, hold: threading.Event | None = None) -> None:
        self.lanes: list[Lane] = []
        self.words: list[tuple[int, int]] = []  # with the step
        self.launched: dict[int, int] = {}
        self.steps: list[StepRecord] = []
        self.flushed = 0
        self.hold = hold
        self.holding = threading.Event()
        self.gave_up = False

    def add_lane(self, lane: Lane, members: Sequence[int]) -> None:
        self.lanes.append(lane)

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        assert len(numbers) % EVENT_NUMBERS == 0 and len(numbers) <= 64 * EVENT_NUMBERS
        self.words += [(step, word) for word in numbers[::EVENT_NUMBERS]]
        self.launched.update(launched)
        assert all(word >> LANE_SHIFT < len(self.lanes) for word in numbers[::EVENT_NUMBERS])

    def step(self, record: StepRecord, totals: Totals) -> None:
        if self.hold is not None:
            self.holding.set()
            self.gave_up = not self.hold.wait(300) or self.gave_up
        self.steps.append(record)

    def flush(self, totals: Totals) -> None:
        self.flushed = totals.steps


class IdleThread:
    """Stands in for a background thread that never gets to run."""

    def stop(self) -> None: ...


class Training:
    """Logs steps with times that the test chooses, and adds up what should be recorded of them."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.now = 10**15
        self.waited: Counter[int] = Counter()
        self.own: Counter[int] = Counter()
        self.words: list[tuple[int, int]] = []

    def pass_time(self, nanoseconds: int) -> int:
        self.now += nanoseconds
        return self.now

    def collective(self, lane: int, waited: int, on_device: bool) -> None:
        step, log = self.recorder.step, self.recorder.lane(LANES[lane], (0, 1))
        word, issued = log.next_word(), self.now
        end = self.pass_time(waited)
        if on_device:
            self.recorder.events.waited(waited)
            self.recorder.events.wait_counted_apart((word, log, issued, 8, step), issued, end, waited, by_device=True)
        else:
            self.recorder.events.append((word, issued, end, waited, 8))
        self.waited[step] += waited
        self.words.append((step, word))

    def step(self, actions: Sequence[tuple[int, int, bool]], own: int) -> None:
        step = self.recorder.step
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            self.recorder.events.phase_entered(self.now, phase, True)
            if phase == BACKWARD:
                for action in actions:
                    self.collective(*action)
            self.recorder.events.phase_left(self.pass_time(own))
        self.own[step] = 3 * own
        self.recorder.live.step = step + 1
        self.recorder.events.step_ended(step + 1)


ACTIONS = st.tuples(st.integers(0, 2), st.integers(0, 10**6), st.booleans())
STEPS = st.lists(
    st.tuples(
        st.lists(ACTIONS, max_size=4) | st.lists(ACTIONS, min_size=64, max_size=150), st.integers(0, 99), st.booleans()
    ),
    max_size=8,
)


@pytest.mark.slow
@given(STEPS)
def test_steps_and_counters_are_the_same_whenever_events_are_drained(
    steps: list[tuple[list[tuple[int, int, bool]], int, bool]],
) -> None:
    kept = KeepingSink()
    recorder = Recorder([kept])
    recorder.set_background(IdleThread())  # type: ignore[arg-type]
    training = Training(recorder)
    for actions, own, drain in steps:
        training.step(actions, own)
        if drain:
            recorder.drain()
    recorder.close()
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.lanes == list(recorder.lanes())
    assert kept.words == training.words, "each once, in order, with its step"
    assert [record.step for record in kept.steps] == list(range(len(steps)))
    for record in kept.steps:
        assert record.waited == training.waited[record.step] and sum(record.phases) == training.own[record.step]
        assert record.end - record.start == record.waited + sum(record.phases)
    assert recorder.totals.lanes[::3] == [
        sum(word >> LANE_SHIFT == lane for _, word in training.words) for lane in range(len(kept.lanes))
    ]
    assert sum(recorder.totals.lanes[1::3]) == sum(training.waited.values())
    assert kept.launched.keys() <= {word for _, word in training.words} and recorder.events.launched == {}
    assert kept.flushed == len(steps)


@pytest.fixture
def drained_in_background() -> Callable[[KeepingSink], Recorder]:
    def start(sink: KeepingSink) -> Recorder:
        recorder = Recorder([sink])
        WriterThread(recorder).start()
        return recorder

    return start


def test_a_background_thread_drains_events_soon(drained_in_background: Callable[[KeepingSink], Recorder]) -> None:
    others = {*threading.enumerate()}
    kept = KeepingSink()
    recorder = drained_in_background(kept)
    training = Training(recorder)
    for _ in range(50):
        training.step([(0, 5, False)], 7)
    wait_for(lambda: len(kept.steps) == 50)
    assert recorder.progress() == ((50, 50),)
    recorder.close()
    assert not [each for each in threading.enumerate() if each.name == "laggard" and each not in others]


def test_training_and_draining_at_once_loses_nothing(drained_in_background: Callable[[KeepingSink], Recorder]) -> None:
    kept = KeepingSink()
    recorder = drained_in_background(kept)
    training = Training(recorder)
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            recorder.drain(0)

    others = [threading.Thread(target=drain) for _ in range(2)]
    for other in others:
        other.start()
    for number in range(1000):
        training.step([(number // 17 % 60, 5, number % 2 == 0)] * 7, 7)
    stop.set()
    for other in others:
        other.join()
    recorder.close()
    assert kept.words == training.words and len(kept.steps) == 1000
    assert {record.waited for record in kept.steps} == {35} and recorder.totals.errors == 0


def test_a_sink_that_hangs_holds_up_nothing_and_lost_events_are_counted(
    drained_in_background: Callable[[KeepingSink], Recorder],
) -> None:
    kept = KeepingSink(hold=threading.Event())
    recorder = drained_in_background(kept)
    training = Training(recorder)
    training.step([], 7)
    assert kept.holding.wait(300)  # now the thread hangs
    lost, steps = 0, 0
    while not lost and steps < 20_000:
        training.step([(0, 5, False)] * 64, 7)
        recorder.events.drain_if_needed()
        lost, steps = recorder.totals.lost, steps + 1
    assert lost > 100_000, "what is kept is bounded"
    assert kept.hold is not None and not kept.hold.is_set() and not kept.gave_up, "it was not waited for"
    kept.hold.set()
    recorder.close()
    assert recorder.totals.errors == 0 and len(kept.steps) < steps


@pytest.mark.slow
def test_at_the_end_a_sink_that_hangs_is_left_behind(drained_in_background: Callable[[KeepingSink], Recorder]) -> None:
    kept = KeepingSink(hold=threading.Event())
    recorder = drained_in_background(kept)
    Training(recorder).step([], 7)
    assert kept.holding.wait(300)
    recorder.close()
    assert kept.hold is not None and not kept.gave_up, "it was not waited for"
    kept.hold.set()


class FailingSink(KeepingSink):
    """A sink whose every step fails."""

    def step(self, record: StepRecord, totals: Totals) -> None:
        raise OSError("gone")


def test_when_a_sink_fails_the_others_get_everything() -> None:
    failing, kept = FailingSink(), KeepingSink()
    recorder = Recorder([failing, kept])
    training = Training(recorder)
    for _ in range(5):
        training.step([(0, 5, False)], 7)
    recorder.close()
    assert len(kept.steps) == 5 and kept.words == failing.words == training.words
    assert recorder.totals.errors == 5


def test_what_a_beat_raises_is_counted_and_the_rest_goes_on(
    drained_in_background: Callable[[KeepingSink], Recorder],
) -> None:
    kept = KeepingSink()
    recorder = Recorder([kept])
    thread = WriterThread(recorder)
    thread.on_beat.append(lambda: 1 // 0)  # type: ignore[arg-type]
    thread.start()
    Training(recorder).step([], 7)
    wait_for(lambda: kept.steps and recorder.totals.errors)
    assert len(kept.steps) == 1
    recorder.close()


@pytest.mark.parametrize(
    ("phases", "gap"),
    [
        ((FORWARD, BACKWARD, OPTIMIZER, OPTIMIZER), BETWEEN_STEPS),
        ((FORWARD, OPTIMIZER), BACKWARD),
        ((OPTIMIZER,), BETWEEN_STEPS),
    ],
    ids=["a second update", "a backward pass that no hook sees", "an update before all passes of its step"],
)
def test_the_time_before_an_update_is_no_backward_pass_without_a_forward_pass(
    phases: tuple[int, ...], gap: int
) -> None:
    timer = StepTimer()
    for step, row in enumerate([(FORWARD, BACKWARD, OPTIMIZER), phases]):
        now = 1000 * step
        timer.begin(now, step)
        for place, phase in enumerate(row, 1):
            now += 100 if step and place == len(row) else 0  # before the last phase
            timer.enter(now, phase, 0)
            timer.leave(now)
    record = timer.close()
    assert record.phases[gap] == 100 == sum(record.phases)
