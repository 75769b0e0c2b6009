"""Where a step ends: by the optimizer or the engine that leads, or by the period of the collectives."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launch import Ranks
from support.rows import rows

from laggard.rankfile.layout import LANE_SHIFT, Lane
from laggard.trainer_hooks.record.events import StepRecord, Totals
from laggard.trainer_hooks.steps import EngineSteps, PeriodicSteps, StepBoundary, smallest_period

ROWS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def by_definition(tokens: list[int]) -> int | None:
    """The smallest period, by trying each."""
    for p in range(1, len(tokens) // 3 + 1):
        last = tokens[len(tokens) - 3 * p :]
        if last[:p] == last[p : 2 * p] == last[2 * p :]:
            return p
    return None


@given(st.lists(st.integers(0, 2), max_size=60))
def test_the_period_is_the_smallest_that_repeats_three_times(tokens: list[int]) -> None:
    assert smallest_period(tokens) == by_definition(tokens)


@given(ROWS, st.lists(st.integers(0, 3), max_size=20), st.integers(3, 8))
def test_a_row_that_repeats_is_found_whatever_came_before(row: list[int], before: list[int], times: int) -> None:
    found = smallest_period(before + row * times)
    assert found is not None and found <= len(row)


def updates(*rounds: str) -> list[str]:
    """Runs a script's rounds: letters are optimizers' updates, a dot is a backward pass, a plus makes the optimizer
    that follows. Returns, for each round, the optimizers whose update ended a step."""
    boundary, ended, worked = StepBoundary(), [], False
    for each in rounds:
        ends, made = "", False
        for letter in each:
            if made:
                boundary.add(letter)
            elif letter not in ".+" and boundary.update(letter, worked, sum(map(len, [*ended, ends]))):
                ends += letter
            worked, made = letter == "." or (worked and letter in "+"), letter == "+"
        ended.append(ends)
    return ended


@rows("hooks/step_ends")
def test_an_update_of_the_optimizer_that_leads_ends_the_step(rounds: str, ended: str) -> None:
    found = updates(*rounds.split())
    assert all(right in ("*", seen) for seen, right in zip(found, ended.split(), strict=True)), found


class Ended:
    """Stands in for a recorder: the numbers of the steps that were ended."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.numbers = step, list[int]()

    def end_step(self, number: int) -> None:
        self.step = number
        self.numbers.append(number)


def test_an_engine_alone_numbers_the_steps_also_after_a_checkpoint() -> None:
    recorder: Any = Ended()
    steps = EngineSteps(recorder)
    assert steps.add_engine() == 1
    for global_steps in (101, 102, 103):
        steps.updated(1, global_steps)
    assert recorder.numbers == [101, 102, 103]


def test_of_two_engines_the_one_that_updates_more_often_ends_the_steps_which_are_numbered_on() -> None:
    """A critic that updates every other time and first, and an actor: each engine counts for itself."""
    recorder: Any = Ended()
    steps = EngineSteps(recorder)
    critic, actor = steps.add_engine(), steps.add_engine()
    steps.updated(critic, 1)
    led = []
    for number in range(1, 7):
        before = recorder.step
        steps.updated(actor, 100 + number)
        led.append(recorder.step - before)
        if number % 2 == 0:
            steps.updated(critic, 1 + number // 2)
    assert led == [0, 1, 1, 1, 1, 1], "once it has updated twice for one update of the critic it leads"
    assert recorder.numbers == [1, 2, 3, 4, 5, 6]


def test_an_optimizer_that_is_set_as_leader_leads() -> None:
    boundary = StepBoundary()
    boundary.set_leader("g")
    ended = []
    for each in ("d", "g", "d", "g"):
        ended.append(boundary.update(each, True, 0))
    assert ended == [False, True, False, True]


@given(ROWS.filter(lambda row: by_definition(row * 3) == len(row)), st.integers(0, 5))
def test_periods_of_collectives_become_steps(row: list[int], before: int) -> None:
    made: list[StepRecord] = []
    sink = PeriodicSteps(made.append)
    tokens = itertools.chain([9] * before, itertools.cycle(row))
    for place in range(before + 300 * len(row)):
        # each takes 10 ns, 3 of them blocked, the next begins 5 ns later
        sink.collectives(-1, [next(tokens) << LANE_SHIFT | 1, 15 * place, 15 * place + 10, 3, 64], {})
    assert len(made) > 100
    assert {record.end - record.start for record in made} == {15 * len(row)}
    assert {record.waited for record in made} == {3 * len(row)}
    assert all(former.end == latter.start for former, latter in itertools.pairwise(made))
    assert [record.step for record in made] == list(range(len(made)))


def test_no_steps_are_made_once_they_come_from_elsewhere() -> None:
    made: list[StepRecord] = []
    sink = PeriodicSteps(made.append)
    totals = Totals()
    totals.add(StepRecord(0, 0, 10, (*[0] * 8, 10), 0, ()))
    sink.step(StepRecord(0, 0, 10, (*[0] * 8, 10), 0, ()), totals)
    for place in range(1000):
        sink.collectives(0, [1 << LANE_SHIFT | 1, place, place + 1, 0, 64], {})
    assert made == []


def _all(sink: PeriodicSteps, count: int, nanoseconds: int = 15, lane: int = 0) -> None:
    for place in range(count):
        sink.collectives(-1, [lane << LANE_SHIFT | 1, nanoseconds * place, nanoseconds * place + 10, 3, 64], {})


def test_equal_layers_of_the_first_step_are_no_steps_where_an_optimizer_will_tell() -> None:
    made: list[StepRecord] = []
    expected = True
    sink = PeriodicSteps(made.append, lambda: expected)
    sink.add_lane(Lane("all_reduce", "dp", "dp:0-1"), [0, 1])
    _all(sink, 2000)
    assert made == []
    expected = False
    _all(sink, 1)
    assert made, "nothing tells of steps"
    made.clear()
    slow = PeriodicSteps(made.append, lambda: True)
    _all(slow, 2000, nanoseconds=1_000_000_000)
    assert made, "half an hour without a step: it was made for something else"


def test_parameters_that_are_sent_to_all_ranks_are_no_steps() -> None:
    made: list[StepRecord] = []
    sink = PeriodicSteps(made.append)
    for op in ("broadcast", "all_gather", "all_reduce"):
        sink.add_lane(Lane(op, "dp", "dp:0-1"), [0, 1])
    _all(sink, 1000, lane=0)
    _all(sink, 1000, lane=1)
    assert made == []
    _all(sink, 1000, lane=2)
    assert made


UPDATES, DELAY_SECONDS = 12, 0.05

SCRIPT = f"""
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
for _ in range({UPDATES}):
    for micro in range(2):
        with model.no_sync() if micro == 0 else torch.enable_grad():
            model(torch.randn(4, 8)).square().mean().backward()
    time.sleep({DELAY_SECONDS})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_each_backward_pass_with_collectives_is_a_step(tmp_path: Path, launch: Callable[..., Ranks]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch(script, extra={"LAGGARD_RECORD_DIR": str(tmp_path / "recording")})
    for rank in range(2):
        rows = [*map(json.loads, (tmp_path / "recording" / f"rank-{rank}.jsonl").read_text().splitlines())]
        steps = [each["step"] for each in rows if each.get("kind") == "step"]
        assert UPDATES - 5 <= len(steps) < UPDATES, f"rank {rank}: {len(steps)} steps of {UPDATES}: the first tell it"
        for step in steps[1:]:
            spans = [each for each in rows if each.get("kind") == "span" and each["step"] == step]
            assert [span["name"] for span in spans].count("forward") == 2, "two micro-steps"
            between = sum(each["end"] - each["start"] for each in spans if each["name"] == "between_steps")
            assert between >= DELAY_SECONDS, f"step {step} of rank {rank}: {between} s between steps"
