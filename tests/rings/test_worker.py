"""A rank's process does what its supervisor commands, with real torch, and answers each command before the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from support.later import Later
from support.ports import free_port

from laggard.rings import messages

pytestmark = pytest.mark.torch
distributed = Later("torch.distributed")
Ask = Callable[[messages.Command], messages.Report]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Sends a rank's process one command, and returns its one report."""
    (there, commands), (reports, here) = os.pipe(), os.pipe()
    words = (sys.executable, "-m", "laggard.rings.worker.main", str(there), str(here), str(os.getpid()), "cpu", "0")
    process = subprocess.Popen(words, pass_fds=(there, here))
    os.close(there)
    os.close(here)
    with os.fdopen(reports, "rb") as answers, os.fdopen(commands, "wb", buffering=0) as orders:
        assert isinstance(messages.read_report(answers.readline()), messages.Ready)

        def answer(command: messages.Command) -> messages.Report:
            orders.write(messages.line(command))
            return messages.read_report(answers.readline())

        yield answer
    assert process.wait() == 0, "a worker ends with its commands"


def test_each_command_is_answered_once(ask: Ask) -> None:
    store = distributed.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)
    assert ask(messages.Publish("127.0.0.1", store.port, "10.0.0.1:4711")) == messages.Done()
    assert ask(messages.Learn("127.0.0.1", store.port, 60.0)) == messages.Learned("10.0.0.1:4711")
    computed = ask(messages.Compute(0.05))
    assert isinstance(computed, messages.Computed) and computed.per_second > 0 and computed.wrong == 0
    assert isinstance(ask(messages.Observe()), messages.Observed)
    port = free_port()
    failed = ask(messages.Learn("127.0.0.1", port, 1.0))
    assert isinstance(failed, messages.Failed) and str(port) in failed.text, failed
