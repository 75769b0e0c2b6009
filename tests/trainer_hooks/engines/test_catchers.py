"""A training that a framework runs in a thread, whose exception it catches, and whose process it kills, as Ray does.

Ray itself is not among the tests' dependencies: a module of that name with the same function stands for it.
`make bench-engines` runs the real one.
"""

from pathlib import Path

import pytest
from support.paths import TRAINING
from support.rows import rows
from support.warm import Warm

from laggard.agent.ranks.reader import RankFiles
from laggard.recording.judged import judge_recording

pytestmark = pytest.mark.slow  # trainings with torch

SCRIPT = """
import os, signal, sys, threading, types
import torch, laggard.trainer_hooks

NAME = "ray.train.v2._internal.execution.worker_group.thread_runner"
runner = types.ModuleType(NAME)
exec('''
def construct_user_exception_with_traceback(e, exclude_frames=0):
    return repr(e)
def run(target):
    try:
        target()
    except BaseException as e:
        return construct_user_exception_with_traceback(e, exclude_frames=3)
''', runner.__dict__)
sys.modules[NAME] = runner

def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    laggard.trainer_hooks.attach(model, optimizer)
    for _ in range(12):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
    ENDS

thread = threading.Thread(target=lambda: print(runner.run(train), flush=True))
thread.start()
thread.join()
after_a_beat()
os.kill(os.getpid(), signal.SIGKILL)
"""


@rows("hooks/caught_ends")
def test_what_the_framework_caught_is_how_the_rank_ended(
    ends: str, state: str, exit_code: int, exception: str, tmp_path: Path, warm_torch_alone: Warm
) -> None:
    (tmp_path / "script.py").write_text((TRAINING / "beats.py").read_text() + SCRIPT.replace("ENDS", ends))
    environment = {
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
        "LAGGARD_JOB_ID": "caught",
    }
    done = warm_torch_alone.run([str(tmp_path / "script.py")], environment)
    assert "KeyError" in done.stdout or "SystemExit" in done.stdout, done
    (row,) = RankFiles(str(tmp_path / "ranks"), "n0").read().ranks
    assert row.state == state and row.end is not None
    assert (row.end.exit_code, row.end.exception, row.end.signal) == (exit_code, exception, "")
    location = judge_recording([str(tmp_path / "recording")]).location
    assert any(note.kind == "rank_died" for note in location.notes) == (state == "died"), location.notes
