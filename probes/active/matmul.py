"""GPU_SLOW and GPU_WRONG_RESULT: how fast each GPU multiplies matrices, and whether the product is right, bit by bit.

The entries are -1, 0 and 1, so that every partial sum is a small integer, exact in bfloat16 and in any order of
summation. The left matrix repeats 64 rows and the right one 64 columns: the whole product is a 64 x 64 table repeated,
known exactly from a little integer arithmetic on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import Device, Round, time_rounds
from laggard.probes.active.measuring.measure import look
from laggard.probes.active.measuring.rules import ActiveThresholds, Measured, Subject
from laggard.probes.groups import ACTIVE
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe

TABLE: Final = 64
SIZES: Final = {True: 8192, False: 512}  # on a GPU, on a CPU
LARGEST_SUM: Final = 256  # the largest range of integers that bfloat16's 8 bits hold exactly
_REPEATS: Final = 8  # products in one timed round: the launch of a kernel is not its speed

SUBJECT = Subject(
    "GPU_SLOW",
    "multiplies matrices at",
    "flop/s",
    "Look for what slows it: throttling (GPU_THROTTLED, GPU_TOO_HOT), a power cap, locked clocks, a blocked air path. "
    "Reset the GPU, and exchange it if it stays slow.",
    (
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE",
        "nvidia-smi --query-gpu=clocks_event_reasons.active --format=csv",
    ),
)


class MatmulThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in flop/s of dense bfloat16 (float16 before Ampere) with 32-bit sums."""


def check(host: Host, thresholds: MatmulThresholds) -> Iterator[Finding | Fact]:
    return look(host, thresholds, SUBJECT, lambda torch, device: multiply(torch, device, thresholds.seconds))


def multiply(torch: Any, device: Device, seconds: float, product: Callable[[Any, Any], Any] | None = None) -> Measured:
    """`product`: how two matrices are multiplied; torch's own unless a test puts a faulty one in."""
    size = SIZES[device.on_gpu]
    left, right, expected = operands(torch, size)
    dtype = _dtype(torch, device)
    copies = size // TABLE
    a = left.repeat(copies, 1).to(device.place, dtype)
    b = right.repeat(1, copies).to(device.place, dtype)
    reference = expected.repeat(copies, copies).to(device.place, dtype)
    latest: list[Any] = [None]

    def work() -> None:
        for _ in range(_REPEATS):
            latest[0] = (product or torch.matmul)(a, b)

    def wrong() -> int:
        return int((latest[0] != reference).sum())

    rate, wrongs, rounds = time_rounds(torch, device, seconds, Round(work, wrong), _REPEATS * 2.0 * size**3)
    # Once more on the CPU: a device that computes wrongly may also compare wrongly.
    wrongs = max(wrongs, int((latest[0].cpu() != expected.repeat(copies, copies).to(dtype)).sum()))
    return Measured(device.name, device.kind, rate, rounds * size * size, wrongs)


def operands(torch: Any, depth: int) -> tuple[Any, Any, Any]:
    """64 rows, 64 columns and their exact product, as integers: the same on every machine and version."""
    left, right = _entries(torch, depth, 1), _entries(torch, depth, 2).T
    return left, right, left @ right


def _entries(torch: Any, depth: int, seed: int) -> Any:
    """64 x `depth` numbers of -1, 0 and 1, a third of them not 0, by a multiplicative hash of the place."""
    place = torch.arange(TABLE * depth, dtype=torch.int64) + (seed << 24)
    mixed = (place * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA77) & 0xFFFFFFFF
    draw = (mixed >> 13) % 6
    return ((draw == 0).to(torch.int64) - (draw == 1).to(torch.int64)).reshape(TABLE, depth)


def _dtype(torch: Any, device: Device) -> Any:
    if not device.on_gpu:
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device.place)[0] >= 8 else torch.float16


PROBE: Final = Probe("active_matmul", check, MatmulThresholds(), group=ACTIVE)
