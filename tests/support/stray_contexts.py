"""Fails a test whose hooks made a CUDA context on a GPU that its script has not used: half a gigabyte of a rank's
neighbour. Every test that uses lazy devices in its own process is covered; a script in another one asks by itself."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_stray_context() -> Iterator[None]:
    runtime = sys.modules.get("support.lazy_cudart")
    if runtime is not None:
        runtime.MADE.clear()
    yield
    runtime = sys.modules.get("support.lazy_cudart")
    if runtime is not None:
        assert runtime.strays() == [], "the hooks made a context on a GPU that the script has not used"
