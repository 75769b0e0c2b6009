"""On which device and stream a collective's times are taken, and where a step begins and ends there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.lazy_torch import LazyTensor
from support.lazy_training import MS, KeepingSink, hooked, recorder_to, train, usual
from support.paths import TESTS

from laggard.rankfile.fact_names import GPU
from laggard.trainer_hooks.device.gpu import Placement, gpu_uuid
from laggard.trainer_hooks.output.recording import RecordingSink
from laggard.trainer_hooks.output.recording_folder import Identity
from laggard.trainer_hooks.record.ending import FACTS
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT
from laggard.trainer_hooks.record.recorder import Recorder


def communicating(torch: Any, recorder: Recorder, device: int) -> Any:
    """A backward pass on `device`: 4 "ms" of work, and a collective of 12."""
    reduce = hooked(torch, recorder, 12 * MS, device)

    def backward() -> None:
        torch.lazy_cuda.launch(device, 4 * MS)
        reduce(LazyTensor(device), "nccl")

    return backward


def assert_true_times(kept: KeepingSink, steps: int = 6) -> None:
    assert len(kept.steps) == steps
    assert usual(kept.steps, lambda step: step.waited) == pytest.approx(12 * MS, abs=6 * MS)
    assert usual(kept.steps, lambda step: step.phases[FORWARD]) == pytest.approx(4 * MS, abs=4 * MS)
    assert usual(kept.steps, lambda step: step.phases[BACKWARD]) == pytest.approx(4 * MS, abs=4 * MS)
    assert usual(kept.steps, lambda step: step.phases[INPUT]) < 4 * MS


@pytest.mark.parametrize("known_by", ["the model's parameters", "the only CUDA context"])
def test_a_script_that_never_calls_set_device(torch: Any, known_by: str) -> None:
    """`model.to(1)` and `device_ids=[1]`: GPU 0 stays current in every rank. No context is made there."""
    kept, placement = KeepingSink(), Placement()
    if known_by == "the model's parameters":
        placement.saw([LazyTensor(-1), LazyTensor(1)])
    recorder = recorder_to(kept, placement)
    train(torch, recorder, communicating(torch, recorder, 1), device=1)
    assert recorder.totals.errors == recorder.totals.lost == 0 and kept.on_device == kept.collected == 6
    assert_true_times(kept)
    assert torch.cuda.current_device() == 0 and torch.lazy_cuda.contexts == {1}
    assert gpu_uuid(placement.find()) == "GPU-uuid-1"


def test_the_gpu_in_the_recording_and_in_the_facts(torch: Any, tmp_path: Path) -> None:
    """The rank's identity is written before it has tensors, when GPU 0 is current."""
    placement = Placement()
    identity = Identity("job", 0, 0, 1, "n0", gpu_uuid(placement.find()), 0)
    recorder = recorder_to(KeepingSink(), placement)
    recorder.add_sinks([RecordingSink(str(tmp_path), identity)])
    train(torch, recorder, communicating(torch, recorder, 1), device=1)
    assert FACTS.get(GPU) == "GPU-uuid-1"
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert [it["gpu"] for it in lines if it.get("kind") == "rank"][-1] == "GPU-uuid-1"


def test_set_device_after_the_first_phases(torch: Any) -> None:
    kept, placement = KeepingSink(), Placement()
    recorder = recorder_to(kept, placement)
    torch.lazy_cuda.put_tensor(0)
    recorder.enter(INPUT)
    recorder.leave()
    assert recorder.live.device is not None and placement.find() == 0
    torch.cuda.set_device(1)
    train(torch, recorder, communicating(torch, recorder, 1), device=1, steps=7)
    assert recorder.totals.errors == 0 and 1 <= recorder.totals.lost <= 2, "the first collective, and its step"
    assert kept.on_device == kept.collected == 6 and placement.find() == 1
    assert_true_times(kept)


def test_an_optimizer_shows_where_a_script_without_collectives_trains(torch: Any) -> None:
    """Something made contexts on both GPUs, and nothing is attached."""
    kept, placement = KeepingSink(), Placement()
    recorder = recorder_to(kept, placement)
    for index in (0, 1):
        torch.lazy_cuda.put_tensor(index)
    optimizer = type("Optimizer", (), {"param_groups": [{"params": [LazyTensor(1)]}]})()

    def backward() -> None:
        torch.lazy_cuda.launch(1, 8 * MS)
        placement.saw_optimizer(optimizer)

    train(torch, recorder, backward, device=1, steps=7)
    assert recorder.totals.errors == 0 and len(kept.steps) >= 5
    assert usual(kept.steps, lambda step: step.phases[BACKWARD]) == pytest.approx(8 * MS, abs=4 * MS)
    placement.saw_optimizer(object())  # one that is not torch's


def test_a_collective_on_another_gpu_is_counted_and_the_timed_one_stays(torch: Any) -> None:
    """A process that works on two GPUs."""
    kept = KeepingSink()
    recorder = recorder_to(kept)
    torch.lazy_cuda.put_tensor(0)
    own = communicating(torch, recorder, 0)
    other = hooked(torch, recorder, 0.0, 1)
    works: list[Any] = []

    def backward() -> None:
        own()
        other(LazyTensor(1), "nccl")
        works.append(other([LazyTensor(1)], "nccl", async_op=True))
        works[-1].wait()

    train(torch, recorder, backward, device=0)
    assert recorder.totals.errors == 0 and recorder.totals.lost == 12 and kept.collected == 6
    assert_true_times(kept)
    assert None not in works


def test_a_barrier_runs_on_the_gpu_where_its_group_has_no_backend_for_the_cpu(torch: Any) -> None:
    recorder = recorder_to(KeepingSink())
    torch.lazy_cuda.put_tensor(0)
    recorder.enter(FORWARD)
    device = recorder.live.device
    assert device is not None

    def group(*types: str) -> Any:
        return type("Group", (), {"_device_types": [type("Device", (), {"type": each}) for each in types]})()

    assert device.carries(None, "nccl") and not device.carries(None, "gloo")
    assert device.carries(None, group("cuda")) and not device.carries(None, group("cpu", "cuda"))
    assert not device.carries(None, group("cpu")) and not device.carries(None, group())


ENDING = """
import sys
from support.lazy_device import LazyDevice
from support.lazy_torch import LazyTensor, lazy_torch
torch = sys.modules["torch"] = lazy_torch(LazyDevice(), LazyDevice())
torch.cuda.Event.__del__ = lambda event: print("destroyed") if event._timing else None
from support.lazy_training import KeepingSink, hooked, recorder_to, train
torch.cuda.set_device(1)
recorder = recorder_to(KeepingSink())
reduce = hooked(torch, recorder, 0.0)
train(torch, recorder, lambda: reduce(LazyTensor(), "nccl"))
assert recorder.totals.errors == 0
print("trained")
"""


def test_no_event_is_destroyed_at_the_interpreters_exit() -> None:
    """By then CUDA may have failed or be shut down, and cudaEventDestroy() would warn once for each of thousands."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=TESTS, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
