"""A training whose parameters no optimizer of torch's updates: its passes tell the steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launch import Ranks

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
