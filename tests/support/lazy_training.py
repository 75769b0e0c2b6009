"""Training on lazy devices under torch.cuda's names: what the tests of the CUDA part of the hooks share."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import Any

from laggard.rankfile import Lane
from laggard.trainer_hooks.collectives.groups import GroupCounts
from laggard.trainer_hooks.collectives.process_group import CollectiveMethod, hook_waits, instrument
from laggard.trainer_hooks.device.gpu import GraphCaptures, Placement
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, OPTIMIZER, Sink, StepRecord, Totals
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.session import device_finder
from support.lazy_device import Network, as_torch, takes

MS = 0.0025


class KeepingSink(Sink):
    """Keeps the steps, and counts the collectives."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.collected = 0
        self.on_device = 0

    def collectives(self, step: int, numbers: Sequence[int], launched: Mapping[int, int]) -> None:
        self.collected += len(numbers) // 5
        self.on_device += len(launched)

    def step(self, record: StepRecord, totals: Totals) -> None:
        self.steps.append(record)


def usual(steps: Sequence[StepRecord], of: Callable[[StepRecord], int]) -> float:
    """In seconds, the lower quartile of the steps without the first: threads take their turns late, and never early."""
    return quantiles([of(step) for step in steps[1:]], n=4, method="inclusive")[0] / 1e9


class Tensor:
    nbytes = 8


class StubGroups:
    """Stands in for ProcessGroups: a group is its own name."""

    def counts_of(self, group: str) -> GroupCounts:
        return GroupCounts("0")

    def lane_logs(self, op: str) -> dict[Any, Any]:
        return {}

    def lane_log(self, recorder: Recorder, op: str, group: Any) -> Any:
        return recorder.lane(Lane(op, "dp", f"dp:{group}"), (0, 1, 2))


def recorder_to(kept: KeepingSink, placement: Placement | None = None) -> Recorder:
    """As a session makes it."""
    captures = GraphCaptures()
    captures.hook(sys.modules["torch"])
    return Recorder([kept], find_device=device_finder(os.environ, placement, captures))


def train(torch: Any, recorder: Recorder, backward: Any, steps: int = 6, device: int = 1) -> None:
    for _ in range(steps):
        train_step(torch, recorder, backward, device)
    torch.lazy_cuda.devices[device].synchronize()
    recorder.close()


def train_step(torch: Any, recorder: Recorder, backward: Any, device: int = 1) -> None:
    lazy = torch.lazy_cuda
    lazy.put_tensor(device)  # the model is there
    for phase, action in ((FORWARD, lambda: lazy.launch(device, 4 * MS)), (BACKWARD, backward), (OPTIMIZER, None)):
        recorder.enter(phase)
        if action:
            action()
        recorder.leave()
    recorder.end_step(recorder.step + 1)


def hooked(torch: Any, recorder: Recorder, seconds: float, device: int = 1) -> Any:
    network = Network(torch.lazy_cuda.devices[device], takes(seconds))
    hook_waits(network.work_class, recorder)
    return as_torch(
        instrument(network.allreduce, CollectiveMethod("all_reduce", 0), recorder, StubGroups(), "allreduce")
    )  # type: ignore[arg-type]
