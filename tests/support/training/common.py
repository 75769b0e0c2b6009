"""What the tests' training scripts have in common. They contain nothing of laggard.

Each prints lines of JSON after a word: the collectives in torch's Flight Recorder (COLLECTIVES), the results to the bit
(RESULT), and for each step of a training with delays how long its parts took (MEASURED).
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

DELAY_SECONDS = 0.4
DELAY_PIECES = 40
DELAYED_PHASES = ("none", "none", "none", "input", "forward", "backward", "optimizer", "none", "collective", "none")

TAGGED = {"scaled": 1001, "half": 1003}
"""Floats in the collective by which a training's steps are recognised."""

FSDP2_ON_CPU = torch.__version__ >= (2, 7)  # TorchVersion knows how to compare
"""Older versions shard modules on accelerators alone."""
DDP_COMPILES = torch.__version__ >= (2, 6)
"""Older versions (seen with 2.4) refuse a graph with DDP's checks in it: "Found a higher order op in the graph"."""

SIZES = {"Float": 4, "Long": 8, "Byte": 1, "BFloat16": 2, "Half": 2, "Int": 4, "Double": 8, "Bool": 1}


def flight_recorder_entries() -> list[tuple[str, str, int]] | None:
    """The collectives of this rank: operation as gloo names it, group, bytes of the larger buffer. None: this torch's
    Flight Recorder does not hold those of gloo."""
    function = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    dump = json.loads(function(True, False)) if function is not None else {}
    if "entries" not in dump:  # it is off
        return None
    return [
        (
            entry["profiling_name"].removeprefix("gloo:"),
            entry["process_group"][0],
            max(
                _bytes(entry["input_sizes"], entry["input_dtypes"]),
                _bytes(entry["output_sizes"], entry["output_dtypes"]),
            ),
        )
        for entry in dump["entries"]
        if not entry["is_p2p"]
    ]


def _bytes(shapes: Any, types: list[str]) -> int:
    return sum(math.prod(shape) * SIZES[types[min(place, len(types) - 1)]] for place, shape in enumerate(shapes))


def print_result(name: str, losses: Iterable[Any], parameters: Iterable[Any]) -> None:
    """Prints the losses, and a digest of this rank's weights."""
    digest = hashlib.sha256()
    for parameter in parameters:
        local = getattr(parameter, "_local_tensor", parameter)
        digest.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes() if local.numel() else b"")
    print("RESULT", json.dumps([name, [float(loss).hex() for loss in losses], digest.hexdigest()]), flush=True)


def finish() -> None:
    dist.barrier()
    print("COLLECTIVES", json.dumps(flight_recorder_entries()), flush=True)
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads release the last tensors


_measured: dict[str, tuple[float, float]] = {}


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Notes when this part of the step began and ended, in seconds of CLOCK_MONOTONIC, which all processes share."""
    began = time.perf_counter()
    yield
    _measured[name] = began, time.perf_counter()


def print_measured_step() -> None:
    print("MEASURED", json.dumps(_measured), flush=True)
    _measured.clear()


def delay(seconds: float) -> None:
    """Sleeps, and notes for how long. It does so in pieces: when the whole machine stands still for a while, all who
    sleep wake up together, and this process still has its other pieces before it."""
    if seconds:
        with measured("delay"):
            for _ in range(DELAY_PIECES):
                time.sleep(seconds / DELAY_PIECES)


def own_all_reduce(delays: dict[str, float]) -> None:
    """A collective that the script makes itself, between the phases."""
    delay(delays.get("collective", 0))
    with measured("collective"):
        dist.all_reduce(torch.zeros(777))


def tag_step(name: str) -> None:
    """A collective in the middle of each step of one training, by whose size the step is recognised."""
    dist.all_reduce(torch.zeros(TAGGED[name]))


def set_delay(delays: dict[str, float], phase: str) -> None:
    """Delays rank 1 in this phase and in no other."""
    delays.clear()
    if int(os.environ["RANK"]) == 1:
        delays[phase] = DELAY_SECONDS


class SlowBackward(torch.autograd.Function):
    """The identity function with a slow gradient."""

    @staticmethod
    def forward(context: Any, hidden: Any, seconds: float) -> Any:
        context.seconds = seconds
        return hidden.view_as(hidden)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        delay(context.seconds)
        return gradient, None


class Model(torch.nn.Module):
    """Three layers with a buffer that DDP broadcasts. `delays`: this rank's delays in seconds, by phase."""

    def __init__(self, width: int = 48, norm: bool = True) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, width)
        self.norm = torch.nn.BatchNorm1d(width) if norm else torch.nn.Identity()
        self.middle = torch.nn.Linear(width, width)
        self.last = torch.nn.Linear(width, 4)
        self.delays: dict[str, float] = {}

    def forward(self, x: Any) -> Any:
        delay(self.delays.get("forward", 0))
        hidden = torch.relu(self.norm(self.first(x)))
        hidden = SlowBackward.apply(torch.relu(self.middle(hidden)), self.delays.get("backward", 0.0))
        return self.last(hidden).square().mean()


class SlowAdamW(torch.optim.AdamW):
    delays: dict[str, float] = {}

    def step(self, closure: Any = None) -> Any:
        delay(self.delays.get("optimizer", 0))
        return super().step(closure)


class Batches(torch.utils.data.Dataset):
    """Random batches, the same in every run, and different on every rank."""

    def __init__(self, count: int, delays: dict[str, float] | None = None) -> None:
        self._x = torch.randn(count, 16, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
        self._delays = {} if delays is None else delays

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        if index % 8 == 0:
            delay(self._delays.get("input", 0))
        return self._x[index]


def loader(steps: int, delays: dict[str, float] | None = None) -> Any:
    return torch.utils.data.DataLoader(Batches(8 * steps, delays), batch_size=8)
