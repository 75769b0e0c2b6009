"""What several test folders need: a real training job's ranks, and a place for what tests leave to be looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import memory

pytest_plugins = ("support.machines", "support.agents", "support.collectors", "support.launch")

TOGETHER = ("slurm",)
ALONE = ("probes/test_machines.py", "probes/record/test_record.py")
LONGEST = ("slurm", "vm/test_kernel.py", "trainer_hooks/test_every_way_to_train.py")

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
    """Sorts the tests, and says which of them stay in one process when they run on several cores.

    A folder's tests stay together where they share a cluster, a file's where they share what a module makes once; each
    test of the files in ALONE is on its own. What takes longest comes first, so that no core is idle at the end;
    tests that import torch into their own process come last (see support/later.py).
    """
    items.sort(key=_place)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _place(item: pytest.Item) -> tuple[bool, int]:
    name = _group(item).partition("::")[0]
    return item.get_closest_marker("torch") is not None, LONGEST.index(name) if name in LONGEST else len(LONGEST)


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(Path(__file__).parent)
    if str(path.parent) in TOGETHER:
        return str(path.parent)
    return f"{path}::{item.name}" if str(path) in ALONE else str(path)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the gate remembers of a test stays out of what it remembers of this machine."""
    os.environ["LAGGARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))
