"""`laggard top` on a terminal until it is interrupted, and where there is nothing to show."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.terminal import LONG, terminal

Start = Callable[..., Any]


@pytest.mark.slow
def test_it_watches_until_it_is_interrupted(watching: Start, fake_agent: Start, make: Any) -> None:
    agent = fake_agent(make.node("n0", [0, 1], slow=1, world_size=2), make.report("n0"))
    collector = watching(agent)
    ours = ["env", "--default-signal=INT"]  # what a script starts in the background ignores it
    top = [sys.executable, "-m", "laggard", "top", "--collector", collector.url, "--interval", "0.2"]
    with terminal([*ours, *top]) as shown:
        shown.wait_for("Rank 1 on n0 is slow in forward")
        collector.stop()
        shown.wait_for("no collector answers at")
        shown.wait_for("Rank 1 on n0 is slow in forward")  # what it said last stays
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(timeout=LONG) == 1
