"""What the tests of the hooks' times on a device share."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch

from laggard.rankfile.fact_names import GPU
from laggard.trainer_hooks.record.ending import FACTS


@pytest.fixture(params=[12, 11], ids=["CUDA 12", "guards go back at once"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for torch with two devices, of which the first is current, and nobody has used either."""
    module = lazy_torch(LazyDevice(clock_offset=10**15), LazyDevice(clock_offset=-(10**15)), cuda=request.param)
    monkeypatch.setitem(sys.modules, "torch", module)
    yield module
    FACTS.set(GPU, None)
