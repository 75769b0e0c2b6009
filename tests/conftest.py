"""What several test folders need: a real training job's ranks, and a place for what tests leave to be looked at."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import memory
from support.later import IMPORTED_TORCH

pytest_plugins = ("support.machines", "support.agents", "support.collectors", "support.warm", "support.launch")

TOGETHER = ("slurm",)
ALONE = (
    "probes/record/test_record.py",
    "probes/test_machines.py",
    "trainer_hooks/output/test_heartbeat.py",
    "trainer_hooks/output/test_http_export.py",
    "trainer_hooks/output/test_recording.py",
)
BY_PARAMETER = ("trainer_hooks/test_every_way_to_train.py", "trainer_hooks/test_attach.py")
LONGEST = (
    "trainer_hooks/test_every_way_to_train.py",
    "vm/test_kernel.py",
    "end_to_end/test_demo.py",
    "slurm",
    "trainer_hooks/test_attach.py",
    "trainer_hooks/engines/test_deepspeed.py",
    "end_to_end/test_pipeline_hang.py",
    "end_to_end/test_faults.py",
    "end_to_end/test_hang.py",
    "collector/web/test_page.py",
)

# A busy machine is no defect: no test fails for its speed but where it says so.
settings.register_profile("laggard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laggard")


@pytest.hookimpl(tryfirst=True)  # before pytest decides on its own place
def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go into memory, where there is room. Who says where, by --basetemp or PYTEST_DEBUG_TEMPROOT, gets
    them there, also to look at: those in memory go when the run ends."""
    if config.option.basetemp or os.environ.get("PYTEST_DEBUG_TEMPROOT") or not memory.has_room():
        return
    memory.remove_abandoned()
    folder = memory.OwnFolder(memory.MEMORY)
    config.add_cleanup(folder.remove)
    config.option.basetemp = str(folder.path / "t")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests: what takes longest comes first, so that no core is idle at the end; tests that import torch into
    their own process come last (see support/later.py)."""
    config.stash[IMPORTED_TORCH] = "torch" in sys.modules
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, int]:
    name = group_of(item.nodeid).partition("::")[0]
    return item.get_closest_marker("torch") is not None, LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out the tests to a process for each core, a group at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


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
    """What the gate remembers of a test stays out of what it remembers of this machine."""
    os.environ["LAGGARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
