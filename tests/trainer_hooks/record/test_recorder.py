"""The recorder and the collective hook with a real rank file, in a process of its own as in training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader

START = """
import json, os, sys, time, weakref
from laggard.rankfile import Lane
from laggard.rankfile.writer import RankFileWriter
from laggard.rankfile.layout import LANE_COUNT
from laggard.trainer_hooks.collectives.groups import GroupCounts
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_calls, hook_waits, instrument
from laggard.trainer_hooks.output.recording_folder import header, identify
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.output.rank_file import RankFileSink

writer = RankFileWriter(sys.argv[1], header(identify(os.environ)))
recorder = Recorder([RankFileSink(writer)], writer.words)

class Groups:
    "Stands in for torch's process groups: the group is its own name."
    def lane_logs(self, op):
        return {}
    def lane_log(self, recorder, op, group):
        return recorder.lane(Lane(op, "dp", str(group)), (0, 1))
    def counts_of(self, name):
        return GroupCounts("0")

class Tensor:
    nbytes = 4096

def hooked(function, op="all_reduce", groups=Groups()):
    "As torch.distributed's function of that name calls a process group's method."
    method = instrument(lambda group, tensors, options: function(*tensors, group, **options), CollectiveMethod(op, 0),
                        recorder, groups, op)
    return lambda tensor, group=None, **options: method(group, [tensor], options)

class Work:
    seconds = 0.0
    def wait(self): time.sleep(self.seconds)

hook_waits(Work, recorder)
pending = hooked(lambda tensor, group=None, async_op=False: Work())

def step(work=lambda: None):
    for phase in (INPUT, FORWARD, BACKWARD):
        recorder.enter(phase); recorder.leave()
    recorder.enter(OPTIMIZER); work(); recorder.leave()
    recorder.end_step(recorder.step + 1)
"""


@pytest.fixture
def train(tmp_path: Path) -> Any:
    def run(body: str, status: int = 0) -> tuple[RankFileReader, Any]:
        """Runs `body` as a training process. Returns its rank file and what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", START + body, str(tmp_path)], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == status, done.stderr
        (path,) = tmp_path.glob("*.rank")
        return RankFileReader(str(path)), json.loads(done.stdout or "null")

    return run


def test_sync_collectives_are_counted_and_their_time_is_no_own_time(train: Any) -> None:
    file, _ = train(
        """
reduce = hooked(lambda tensor, group=None: time.sleep(0.01))
for _ in range(3):
    step(lambda: [reduce(Tensor(), "a"), reduce(tensor=Tensor(), group="a"), reduce(Tensor(), group="b")])
recorder.close()
"""
    )
    counters = file.counters()
    assert [lane.group for lane in file.lanes()] == ["a", "b"]
    assert [(count, size) for count, _, size in counters.lanes] == [(6, 6 * 4096), (3, 3 * 4096)]
    assert counters.errors == counters.lost == 0
    records = file.collectives()
    assert [record.sequence for record in records if record.lane == 0] == [1, 2, 3, 4, 5, 6]
    assert all(record.waited >= 10_000_000 and record.end - record.arrival == record.waited for record in records)
    for each in file.steps():
        assert each.waited >= 30_000_000 and each.waited + sum(each.phases) == each.end - each.start
    waited = sum(record.waited for record in records)
    assert waited == sum(each.waited for each in file.steps()), "what was waited is no own time"


def test_an_async_collectives_wait_counts_and_what_overlaps_does_not(train: Any) -> None:
    file, printed = train(
        """
slept = []
def sleep(seconds):
    began = time.perf_counter_ns(); time.sleep(seconds); slept.append(time.perf_counter_ns() - began)
class Timed:
    tag = "kept"
    def wait(self, timeout=None):
        sleep(0.02)
        return timeout
hook_waits(Timed, recorder)
reduce = hooked(lambda tensor, group=None, async_op=False: Timed())
answers = []
def work():
    handle = reduce(Tensor(), "a", async_op=True)
    sleep(0.05)
    answers.append([handle.wait(5), handle.wait(), handle.tag])
step(work); step(work)
recorder.close()
print(json.dumps([answers, slept]))
"""
    )
    answers, slept = printed
    assert answers == [[5, None, "kept"]] * 2
    records = file.collectives()
    assert len(records) == 2  # the second wait() of a handle is not recorded
    for record, step, (work, wait, second) in zip(records, file.steps(), (slept[:3], slept[3:]), strict=True):
        assert wait <= record.waited == step.waited and work + wait <= record.end - record.arrival
        assert step.phases[3] >= work + second, "the second wait and the work are the rank's own time"


def test_a_handle_that_nobody_waits_for_is_recorded_as_never_seen_to_end(train: Any) -> None:
    file, _ = train(
        """
step(lambda: pending(Tensor(), "a", async_op=True)); step(); step()
recorder.close()
"""
    )
    assert [(record.end, record.waited) for record in file.collectives()] == [(0, 0)]


def test_a_dropped_handle_is_held_until_the_next_collective_or_the_end_of_the_step_at_most(train: Any) -> None:
    """It may hold its tensors' memory."""
    _, printed = train(
        """
def dropped():
    return weakref.ref(pending(Tensor(), "a", async_op=True))
held = []
def work():
    first = dropped()
    second = dropped()
    held.append(first() is None)
    pending(Tensor(), "a", async_op=True).wait()
    held.append(second() is None)
    held.append(dropped())
step(work)
held[-1] = held[-1]() is None
recorder.close()
print(json.dumps(held))
"""
    )
    assert printed == [True, True, True]


def test_collectives_of_a_batch_end_with_the_work_that_stands_for_them(train: Any) -> None:
    file, _ = train(
        """
Work.seconds = 0.02
class Group:
    "Stands in for a ProcessGroup whose backend coalesces: works of send and recv within a batch are nothing."
    def send(self, tensors, peer, tag): return Work()
    def recv(self, tensors, peer, tag): return Work()
    def _start_coalescing(self, device): pass
    def _end_coalescing(self, device): return Work()
class Peers(Groups):
    def lane_log(self, recorder, op, group, peer):
        return recorder.lane(Lane(op, "pp", "pp:0-1", peer), (0, 1))
hook_calls(Group, recorder, Peers())
group = Group()
def batch():
    group._start_coalescing(None)
    group.send([Tensor()], 1, 0); group.send([Tensor()], 1, 0); group.recv([Tensor()], 1, 0)
    group._end_coalescing(None).wait()
step(batch); step(batch)
recorder.close()
"""
    )
    assert file.counters().errors == 0
    assert [(lane.op, lane.peer) for lane in file.lanes()] == [("send", 1), ("recv", 1)]
    records = file.collectives()
    assert sorted((record.lane, record.sequence) for record in records) == [
        (0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2),
    ]  # fmt: skip
    assert all(record.end > record.arrival for record in records)
    blocked = [record.waited for record in records if record.waited]
    assert [each.waited for each in file.steps()] == blocked and min(blocked) >= 20_000_000, "once for all of them"


def test_a_collective_that_fails_is_in_flight_no_longer(train: Any) -> None:
    file, _ = train(
        """
def refuse(tensor, group=None):
    raise ConnectionError
try:
    hooked(refuse)(Tensor(), "a")
except ConnectionError:
    pass
"""
    )
    assert file.live_state().collective is None


@pytest.mark.parametrize("given", ["Work()", "None"])
def test_one_work_stands_for_all_collectives_of_a_batch(train: Any, given: str) -> None:
    """What a backend returns for each call of the batch is dropped, if it returns anything."""
    file, _ = train(
        f"""
Work.seconds = 0.02
class Group:
    def allreduce(self, tensors, options=None): return {given}
    def _start_coalescing(self): pass
    def _end_coalescing(self): return Work()
hook_calls(Group, recorder, Groups())
def batch():
    group = Group()
    group._start_coalescing()
    for _ in range(3): group.allreduce([Tensor()])
    work = group._end_coalescing()
    time.sleep(0.01)
    work.wait()
step(batch); step(batch)
recorder.close()
"""
    )
    records = file.collectives()
    assert len(records) == 6
    assert all(record.end - record.arrival >= 30_000_000 for record in records)
    blocked = [record.waited for record in records if record.waited]
    assert [each.waited for each in file.steps()] == blocked, "the wait for all of them counts once"
    assert min(blocked) >= 20_000_000


def test_the_collective_in_flight_can_be_read_after_a_kill(train: Any) -> None:
    file, _ = train(
        """
import signal
step()
recorder.enter(BACKWARD)
hooked(lambda tensor, group=None: os.kill(os.getpid(), signal.SIGKILL))(Tensor(), "b")
""",
        status=-9,
    )
    collective, phase, _ = file.live_state()
    assert collective is not None
    assert (file.lanes()[collective.lane].group, collective.sequence) == ("b", 1)
    assert phase == 2 and file.lock_holder() is None and not file.finished()
    assert [each.step for each in file.steps()] == [0]


def test_the_users_exceptions_pass_and_the_hooks_own_do_not(train: Any) -> None:
    file, printed = train(
        """
def refuse(tensor, group=None):
    raise ConnectionError("peer is gone")
raised = []
try:
    hooked(refuse)(Tensor(), "a")
except ConnectionError as error:
    raised.append(str(error))
class Broken(Groups):
    def lane_log(self, *_): raise KeyError("ours")
raised.append(hooked(lambda tensor, group=None: "result", "reduce", Broken())(1, "a"))
raised.append(hooked(lambda thing, group=None: "no size")(object(), "a"))
step()
recorder.close()
print(json.dumps(raised))
"""
    )
    assert printed == ["peer is gone", "result", "no size"]
    assert file.counters().errors == 2


def test_a_forked_child_does_not_write_as_its_parent(train: Any) -> None:
    file, _ = train(
        """
os.register_at_fork(after_in_child=recorder.disable_after_fork)
reduce = hooked(lambda tensor, group=None: None)
step(lambda: reduce(Tensor(), "a"))
if os.fork() == 0:
    for _ in range(200):
        step(lambda: reduce(Tensor(), "a"))
    os._exit(0)
os.wait()
step()
recorder.close()
"""
    )
    counters = file.counters()
    assert [each.step for each in file.steps()] == [0, 1] and counters.lanes[0][0] == 1
    assert file.finished() and file.live_state().collective is None


def test_memory_is_bounded_and_what_does_not_fit_is_counted(train: Any) -> None:
    file, printed = train(
        """
reduce = hooked(lambda tensor, group=None: None)
def much():
    for group in range(LANE_COUNT + 6):
        reduce(Tensor(), group)
    for _ in range(50_000):
        reduce(Tensor(), 0)
step(much)
held = len(recorder.events)
recorder.close()
print(held)
"""
    )
    counters = file.counters()
    assert printed < 200
    assert len(file.lanes()) == len(counters.lanes) == 64 and counters.lost == 6
    assert counters.lanes[0][0] == 50_001


def test_more_steps_than_the_ring_holds(train: Any) -> None:
    file, _ = train("for _ in range(3000): step()\nrecorder.close()")
    steps = [each.step for each in file.steps()]
    assert steps == list(range(3000 - len(steps), 3000)) and len(steps) > 1000
    newest = file.steps()[-1].end
    assert [each.step for each in file.steps(since_ns=newest)] == [2999]


def test_accumulated_micro_batches_are_one_step(train: Any) -> None:
    file, _ = train(
        """
for _ in range(2):
    for micro in range(3):
        recorder.enter(FORWARD); time.sleep(0.01); recorder.leave()
        recorder.enter(BACKWARD); recorder.leave()
        recorder.enter(OPTIMIZER); recorder.leave()
    recorder.end_step(recorder.step + 1)
recorder.close()
"""
    )
    assert [each.phases[1] >= 30_000_000 for each in file.steps()] == [True, True]


@pytest.mark.parametrize(
    ("engine", "backward", "phase"),
    [(False, True, "between_steps"), (True, True, "other"), (True, False, "backward")],
)
def test_the_time_between_phases_counts_for_what_it_was_spent_on(
    train: Any, engine: bool, backward: bool, phase: str
) -> None:
    where = "before the forward" if backward else "before the step"
    file, _ = train(
        f"""
if {engine}: recorder.events.expect_engine_gaps()
for _ in range(2):
    if {backward}: time.sleep(0.02)  # {where}
    recorder.enter(FORWARD); recorder.leave()
    if {backward}:
        recorder.enter(BACKWARD); recorder.leave()
    else: time.sleep(0.02)  # loss.backward()
    recorder.enter(OPTIMIZER); recorder.leave()
    recorder.end_step(recorder.step + 1)
recorder.close()
"""
    )
    step = file.steps()[1]
    assert step.phases[PHASES.index(phase)] >= 20_000_000
    assert step.waited + sum(step.phases) == step.end - step.start, "it counts for nothing else"
