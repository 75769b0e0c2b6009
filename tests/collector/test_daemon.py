"""The collector as a process: it takes its settings from a file, and stops when it is told to."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_configuration_file_is_enough_and_it_stops_at_once_with_exit_status_0(
    start_collector: Callable[..., Any], fake_agent: Callable[..., Any], make: Any, number: int
) -> None:
    slow = fake_agent(make.ranks_document("n0", []), delay=300)
    collector = start_collector(targets=[slow.address], interval_seconds=0.3)
    collector.wait_until(lambda: bool(slow.requests))
    assert collector.get("/-/healthy").status_code == 200
    assert collector.stop(number) == 0
