"""What several test folders need: a real training job's ranks, and a place for what tests leave to be looked at."""

import asyncio
import gc
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import memory
from support.own_machine import hide_state
from support.paths import TESTS
from support.skipped import for_want_of_programs

pytest_plugins = (
    "support.order",
    "support.machines",
    "support.judge",
    "support.agents",
    "support.alerting",
    "support.browsing",
    "support.collectors",
    "support.warm",
    "support.launch",
    "support.postgres",
    "support.stores",
    "support.readers",
    "support.certificates",
    "support.stray_contexts",
)

# A busy machine is no defect: no test fails for its speed but where it says so.
# A run says of a change what the run before said: property tests have the same examples each time, and new ones in
# `make test-all`.
explore = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", explore)
settings.register_profile("laggard", explore, derandomize=True, database=None)
settings.load_profile("laggard")


@pytest.hookimpl(tryfirst=True)  # before pytest decides on its own place
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go into memory, where there is room. Who says where, by --basetemp or PYTEST_DEBUG_TEMPROOT, gets
    them there, also to look at: those in memory go when the run ends."""
    if not hasattr(config, "workerinput"):  # the workers of a run share what the run sees, as their warm servers do
        hide_state()
    if worker := getattr(config, "workerinput", None):
        config.args[:] = _from_another_file_on(config.args, worker)
    if config.option.basetemp or os.environ.get("PYTEST_DEBUG_TEMPROOT") or not memory.has_room():
        return
    memory.remove_abandoned()
    folder = memory.OwnFolder(memory.MEMORY)
    config.add_cleanup(folder.remove)
    config.option.basetemp = str(folder.path / "t")


def _from_another_file_on(args: Sequence[str], worker: Mapping[str, Any]) -> Sequence[str]:
    """The test files, where all are asked for; each process of a run begins with another one. In a new clone the files
    have to be compiled: what one process has compiled, the others read."""
    if [Path(arg).resolve() for arg in args] != [TESTS]:
        return args
    files = sorted(str(path) for path in TESTS.rglob("test_*.py"))
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    return files[first:] + files[:first]


def pytest_collection_finish() -> None:
    """What collecting made stays to the end: no later collection of garbage needs to look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which refuses it
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own, and not for ever."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    words = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**words), 300.0))
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own, so that it stands below pytest's list
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Says loudly what was not tested for want of a program; it fails nothing."""
    yield
    skipped = terminalreporter.stats.get("skipped", ())
    if line := for_want_of_programs((report.nodeid, report.longrepr[2]) for report in skipped):
        terminalreporter.write_line(line, yellow=True, bold=True)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the gate remembers of a test stays out of what it remembers of this machine. What DeepSpeed builds is the
    run's own, since a build that is killed leaves a lock, for which every later one waits without end."""
    os.environ["LAGGARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
    base = tmp_path_factory.getbasetemp()
    of_run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    os.environ["TORCH_EXTENSIONS_DIR"] = str(of_run / "torch_extensions")
