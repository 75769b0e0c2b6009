"""A rank that has left torch.distributed in order harms nobody, however its launcher then ends it, as Ray does by
force."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import TRAINING
from support.warm import Warm

from laggard.agent.ranks.reader import RankFiles
from laggard.recording.judged import judge_recording

pytestmark = pytest.mark.slow  # trainings with torch

SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def train(steps):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
train(12)
"""
LEAVES = "dist.destroy_process_group(); time.sleep(0.3); "


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (LEAVES + "os._exit(1)", "finished"),
        (LEAVES + "os.kill(os.getpid(), signal.SIGKILL)", "finished"),
        (LEAVES, "finished"),
        ("time.sleep(0.3); os._exit(1)", "died"),
        # A forked child that ends the groups that it was born with says nothing for its parent.
        ("pid = os.fork()\nif not pid: " + LEAVES + "os._exit(0)\nos.waitpid(pid, 0); os._exit(1)", "died"),
        (LEAVES + "sys.exit(3)", "died"),
        (LEAVES + "raise KeyError", "died"),
        (LEAVES + "train(2); after_a_beat(); os._exit(1)", "died"),  # it came back
        ("try: raise KeyError\nfinally: dist.destroy_process_group(); time.sleep(0.3); os._exit(1)", "died"),
    ],
)
def test_who_has_left_is_not_dead(end: str, state: str, tmp_path: Path, warm_torch_alone: Warm) -> None:
    (tmp_path / "script.py").write_text((TRAINING / "beats.py").read_text() + SCRIPT + end)
    environment = {
        "LAGGARD_RANK_DIR": str(tmp_path / "ranks"),
        "LAGGARD_RECORD_DIR": str(tmp_path / "recording"),
        "LAGGARD_JOB_ID": "leaves",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    warm_torch_alone.run(["-m", "laggard", "run", str(tmp_path / "script.py")], environment)
    (row,) = RankFiles(str(tmp_path / "ranks"), "n0").read().ranks
    assert row.state == state
    location = judge_recording([str(tmp_path / "recording")]).location
    assert any(note.kind == "rank_died" for note in location.notes) == (state == "died"), location.notes
