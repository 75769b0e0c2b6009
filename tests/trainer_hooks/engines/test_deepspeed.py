"""The hooks in real DeepSpeed jobs on gloo: they record what happened and change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import DEMO_TRAINING

from laggard.rankfile import RankFileReader


@pytest.mark.spine
@pytest.mark.slow
def test_a_step_is_the_sum_of_its_phases_and_waits(launch: Callable[..., Any], tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    words = ["--steps", "6", "--slow-rank", "1", "--slow-phase", "optimizer", "--slow-by", "0.3"]
    launch(DEMO_TRAINING, words, extra={"LAGGARD_RECORD_DIR": str(recording)})

    files = sorted((tmp_path / "ranks").rglob("*.rank"))
    assert len(files) == 2
    for path in files:
        with RankFileReader(str(path)) as file:
            steps, counters = file.steps(), file.counters()
            rank = file.identity["rank"]
            assert file.identity["node"] == f"n{rank}"
            assert file.lock_holder() is None
            assert file.finished()
        assert counters is not None
        assert [step.step for step in steps] == list(range(6)) and counters.steps == 6
        assert counters.errors == counters.lost == 0
        for step in steps:
            assert step.end - step.start == sum(step.phases) + step.waited
            assert min(*step.phases, step.waited) >= 0
        assert all(before.end == after.start for before, after in zip(steps, steps[1:], strict=False))
        slowed = [step.phases[3] / 1e9 >= 0.3 for step in steps[1:]]
        assert all(slowed) if rank == 1 else not all(slowed)


TWO_ENGINES = """
import inspect, time, torch, deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
def engine(steps):
    model = torch.nn.Linear(8, 1)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": steps, "steps_per_print": 1000}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
def update(engine, seconds=0.0):
    loss = engine(torch.ones(2, 8)).sum()
    loss.register_hook(lambda _: time.sleep(seconds))
    engine.backward(loss)
    engine.step()
actor, critic = engine(1), engine(2)
for name in ("forward", "backward", "step"):
    own = getattr(type(actor), name).__get__(actor)
    assert inspect.signature(getattr(actor, name)) == inspect.signature(own), name
for _ in range(6):
    update(actor)
    update(critic, 0.05)
torch.distributed.destroy_process_group()
time.sleep(0.5)
"""


@pytest.mark.slow
def test_one_of_two_engines_ends_the_steps_which_contain_both(launch: Callable[..., Any], tmp_path: Path) -> None:
    """An actor, and a critic that updates every other time."""
    script = tmp_path / "two.py"
    script.write_text(TWO_ENGINES)
    launch(script)
    files = sorted((tmp_path / "ranks").rglob("*.rank"))
    assert len(files) == 2
    for path in files:
        with RankFileReader(str(path)) as file:
            steps = file.steps()
            assert [step.step for step in steps] == list(range(6))
            assert all(step.phases[2] > 50_000_000 for step in steps[1:]), "the critic's backward pass is in each"


@pytest.mark.slow
def test_one_line_in_the_script_is_enough(launch: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "attached.py"
    text = DEMO_TRAINING.read_text()
    line = "    engine, *_ = deepspeed.initialize("
    (before, after) = text.split(line)
    call, _, rest = after.partition("\n")
    script.write_text(
        f"{before}{line}{call}\n    __import__('laggard.trainer_hooks').trainer_hooks.attach(engine)\n{rest}"
    )
    launch(script, ["--steps", "3"], hooks=False)
    for path in (tmp_path / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            assert [step.step for step in file.steps()] == [0, 1, 2] and file.finished()
    assert len(list((tmp_path / "ranks").rglob("*.rank"))) == 2
