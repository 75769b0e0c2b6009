"""The NVML library built for the tests, and the gate that runs with it."""

from pathlib import Path

import pytest
from support.nvml_gate import Gate, build_library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml") / "new")


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml") / "old", "-DOLD_DRIVER")


@pytest.fixture
def gate(tmp_path: Path, library: Path) -> Gate:
    return Gate(tmp_path, library)
