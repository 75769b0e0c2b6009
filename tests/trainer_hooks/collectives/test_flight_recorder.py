"""The status that torch's Flight Recorder reports: of a real gloo group, and in the forms of other backends and
versions."""

import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.torch_version import GLOO_IS_RECORDED

from laggard.trainer_hooks.collectives.flight_recorder import ABSENT, OFF, ON, FlightRecorderStatus, read_status

REAL = """
import os, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = sys.argv[1]
from laggard.trainer_hooks.collectives.flight_recorder import read_status
before = read_status()
import torch, torch.distributed as dist
up = read_status()
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for number in range(1, 6):
    dist.all_reduce(torch.ones(1))
    # Two of gloo's threads count what is done: of two at once the older may be counted last.
    until = time.monotonic() + 120
    while read_status().groups and read_status().groups[0][3] < number and time.monotonic() < until:
        time.sleep(0.01)
print([tuple(each) for each in (before, up, read_status())])
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not GLOO_IS_RECORDED, reason="this torch's Flight Recorder does not hold gloo's collectives")
@pytest.mark.parametrize(("size", "after"), [("2000", (ON, (("#0", 5, -1, 5),))), ("0", (OFF, ()))])
def test_a_real_group_on_and_off(size: str, after: tuple[object, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", REAL, size], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([(ABSENT, ()), (ABSENT, ()), after])


@pytest.fixture
def nccl_dump(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Stands in for torch's binding with NCCL, which needs GPUs: it dumps `text`."""
    module = ModuleType("torch._C._distributed_c10d")
    module._dump_nccl_trace_json = lambda entries, active: module.text  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module


numbers = st.integers(-1, 1 << 53)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    status=st.dictionaries(st.integers(0, 99).map(str), st.tuples(numbers, numbers, numbers), min_size=1),
    as_text=st.booleans(),
    tail=st.sampled_from((',"version":"2.10"}', "}", ',"entries":[]}')),
)
def test_numbers_are_read_whatever_stands_around_them(
    nccl_dump: ModuleType, status: dict[str, tuple[int, int, int]], as_text: bool, tail: str
) -> None:
    words = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    shown = {
        key: {word: str(number) if as_text else number for word, number in zip(words, each, strict=True)}
        for key, each in status.items()
    }
    config = json.dumps({"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}})
    text = f'{{"pg_config":{config},"pg_status":{json.dumps(shown)}{tail}'
    nccl_dump.text = text.encode()  # type: ignore[attr-defined]
    expected = tuple((f"#{key}", *each) for key, each in status.items())
    assert read_status() == FlightRecorderStatus(ON, expected)


def test_a_status_without_numbers_has_none(nccl_dump: ModuleType) -> None:
    nccl_dump.text = b'{"pg_status":{"0":{},"1":7,"2":{"last_enqueued_collective":"soon"}}}'  # type: ignore[attr-defined]
    assert read_status() == FlightRecorderStatus(ON, (("#0", -1, -1, -1), ("#1", -1, -1, -1), ("#2", -1, -1, -1)))
    nccl_dump.text = b"{}"  # type: ignore[attr-defined]
    assert read_status().groups == ()
