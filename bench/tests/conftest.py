"""The benchmarks' tests stand on what the repository's stand on, by whose conftest.py they are ordered and run."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from common.smallest import Ended, Run

pytest_plugins = ("conftest",)


@pytest.fixture
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """Starts a benchmark: its name and its words. What it leaves behind is killed when the test ends."""
    with ExitStack() as stack:

        def started(script: str, *words: Any, environ: dict[str, str] | None = None) -> Run:
            run = Run(tmp_path_factory.mktemp(script.rpartition("/")[2]), script, words, environ or {})
            stack.callback(run.end)
            return run

        yield started


@pytest.fixture
def bench(begin: Callable[..., Run]) -> Callable[..., Ended]:
    """Runs a benchmark to its end, which has to leave nothing behind. `status`: what it may end with; over its budgets
    it ends with 1, as on a busy machine. One that cannot run here says why in a line; then the test is skipped."""

    def run(script: str, *words: Any, seconds: float = 300.0, status: tuple[int, ...] = (0, 1), **more: Any) -> Ended:
        started = begin(script, *words, **more)
        ended = started.wait(seconds)
        assert not (left := started.left_behind()), f"{script} left behind {left}: {ended}"
        if ended.status == os.EX_USAGE not in status and "needs " in ended.errors:
            (line,) = ended.errors.splitlines()
            assert line.startswith(f"{Path(script).name}: needs "), ended
            pytest.skip(line.partition(": ")[2])
        assert ended.status in status and "Traceback" not in ended.errors, ended
        return ended

    return run
