"""What several test folders need: a real training job's ranks, and a place for what tests leave to be looked at."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import memory
from support.later import IMPORTED_TORCH
from support.own_machine import hide_state
from support.paths import TESTS
from support.skipped import for_want_of_programs

pytest_plugins = (
    "support.machines",
    "support.judge",
    "support.agents",
    "support.alerting",
    "support.browsing",
    "support.collectors",
    "support.warm",
    "support.launch",
    "support.readers",
    "support.certificates",
)

TOGETHER = ("slurm", "kubernetes")
ALONE = (
    "gpu_check/test_gpu_check.py",
    "probes/record/test_record.py",
    "probes/test_machines.py",
    "trainer_hooks/output/test_heartbeat.py",
    "trainer_hooks/output/test_http_export.py",
    "trainer_hooks/output/test_recording.py",
    "trainer_hooks/test_ways_to_start.py",
)
BY_PARAMETER = ("trainer_hooks/test_every_way_to_train.py", "trainer_hooks/test_attach.py")
LONGEST = (
    "vm/test_kernel.py",
    "trainer_hooks/test_every_way_to_train.py",
    "end_to_end/test_demo.py",
    "slurm",
    "src/laggard/gate/test_gang.py",
    "kubernetes/test_controller.py",
    "probes/nvml/test_live.py",
    "trainer_hooks/test_attach.py",
    "gpu_check/test_gpu_check.py",
    "trainer_hooks/test_ways_to_start.py",
    "trainer_hooks/engines/test_deepspeed.py",
    "end_to_end/test_pipeline_hang.py",
    "end_to_end/test_faults.py",
    "end_to_end/test_tasks.py",
    "rings/test_ring.py",
    "collector/test_daemon.py",
    "rings/test_pairs_live.py",
    "probes/active/test_active.py",
    "end_to_end/test_hang.py",
    "collector/web/test_page.py",
    "collector/web/test_large.py",
    "probes/nvml/test_nvidia_ml_py.py",
    "bench/test_simulator.py",
    "test_others_suites.py",
    "trainer_hooks/collectives/test_native.py",
    "trainer_hooks/collectives/test_process_group.py",
    "collector/web/test_connections.py",
    "trainer_hooks/test_hook_faults.py",
    "end_to_end/test_tensor_parallel.py",
    "trainer_hooks/device/test_device.py",
    "src/laggard/recording/test_reader.py",
    "src/laggard/recording/test_writer.py",
    "gpu_check/test_events.py",
    "trainer_hooks/pytorch/test_ddp.py",
)
WITHOUT_FORKS = ("nccl/", "diagnose/", "catalogue/", "src/laggard/locate/", "collector/fleet/")

# A busy machine is no defect: no test fails for its speed but where it says so.
settings.register_profile("laggard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laggard")


@pytest.hookimpl(tryfirst=True)  # before pytest decides on its own place
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go into memory, where there is room. Who says where, by --basetemp or PYTEST_DEBUG_TEMPROOT, gets
    them there, also to look at: those in memory go when the run ends."""
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests: what takes longest comes first, so that no core is idle at the end. Tests that import torch into
    their own process come late (see support/later.py): behind them only those of WITHOUT_FORKS, which fill the other
    cores meanwhile."""
    config.stash[IMPORTED_TORCH] = "torch" in sys.modules
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[int, str]:
    """Its turn, and its file's path: all processes of a run have the same order, whichever file they began with."""
    name = group_of(item.nodeid).partition("::")[0]
    turn = LONGEST.index(name) if name in LONGEST else len(LONGEST)
    if item.get_closest_marker("torch") is not None:
        turn = len(LONGEST) + 1
    elif name.startswith(WITHOUT_FORKS):
        turn = len(LONGEST) + 2
    return turn, item.nodeid.partition("::")[0]


def pytest_collection_finish() -> None:
    """What collecting made stays to the end: no later collection of garbage needs to look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out the tests to a process for each core, a group at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's own, so that it stands below pytest's list
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Says loudly what was not tested for want of a program; it fails nothing."""
    yield
    skipped = terminalreporter.stats.get("skipped", ())
    if line := for_want_of_programs((report.nodeid, report.longrepr[2]) for report in skipped):
        terminalreporter.write_line(line, yellow=True, bold=True)


def group_of(nodeid: str) -> str:
    """The group of a test: one process runs a group's tests, one after the other. A folder in TOGETHER is one group; a
    file in ALONE has a group for each test, a file in BY_PARAMETER one for each first parameter; any other file is one
    group, since its tests may share what a module makes once."""
    path, _, test = nodeid.removeprefix("tests/").partition("::")
    folder = path.rpartition("/")[0]
    if folder in TOGETHER:
        return folder
    if path in ALONE:
        return f"{path}::{test}"
    parameter = test.partition("[")[2].rstrip("]").partition("-")[0]
    return f"{path}::{parameter}" if path in BY_PARAMETER else path


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the gate remembers of a test stays out of what it remembers of this machine. What DeepSpeed builds is the
    run's own, since a build that is killed leaves a lock, for which every later one waits without end."""
    os.environ["LAGGARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
    base = tmp_path_factory.getbasetemp()
    of_run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    os.environ["TORCH_EXTENSIONS_DIR"] = str(of_run / "torch_extensions")
