"""GPU_SLOW and GPU_WRONG_RESULT: a GPU that multiplies matrices too slowly, or whose product is not exactly right.

The entries are integers of -15 to 15: exact in bfloat16 and float16, and so varied that the multipliers take the power
that training takes. (Of zeros and ones they take much less, and a GPU that heat or power limits shows its full speed.)
Every partial sum is an integer below 2**24, exact in 32 bits and in any order of summation; the result is that sum,
rounded once. The left matrix repeats 64 rows and the right one 64 columns: the product repeats a table of 64 x 64,
which a little integer arithmetic on the CPU gives exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import ComputeDevice, Workload, check_rates, time_rounds
from laggard.probes.active.measuring.rates import ActiveThresholds, Measurement, RateTest
from laggard.probes.host.host import Host
from laggard.probes.probe import ACTIVE, Fact, NotNegative, Probe

TABLE: Final = 64
SIZES: Final = {True: 8192, False: 512}  # on a GPU, on a CPU
LARGEST: Final = 15
_REPEATS: Final = {True: 8, False: 4}
"""Products in one timed round, on a GPU and on a CPU. On a GPU the launch of a kernel is not its speed; on a CPU, which
others share, the best round has to fit between their turns, and to be longer than what a CPU quota lets through."""

RATE_TEST = RateTest("slow_matmul", "multiplies matrices at", "flop/s")


class MatmulThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in flop/s of dense bfloat16 (float16 before Ampere) with 32-bit sums."""

    seconds: NotNegative = 2.0
    """The time for which each device is measured, after a warm-up of the same length: power limits act within a second,
    heat a little later."""


def check(host: Host, thresholds: MatmulThresholds) -> Iterator[Finding | Fact]:
    return check_rates(host, thresholds, RATE_TEST, lambda torch, device: multiply(torch, device, thresholds.seconds))


def multiply(
    torch: Any, device: ComputeDevice, seconds: float, product: Callable[[Any, Any], Any] | None = None
) -> Measurement:
    """`product` multiplies two matrices: torch.matmul, unless a test puts in a faulty one."""
    _sum_in_32_bits(torch)
    size, repeats = SIZES[device.on_gpu], _REPEATS[device.on_gpu]
    left, right, expected = operands(torch, size)
    dtype = _dtype(torch, device)
    copies = size // TABLE
    a = left.repeat(copies, 1).to(device.torch_name, dtype)
    b = right.repeat(1, copies).to(device.torch_name, dtype)
    reference = expected.repeat(copies, copies).to(device.torch_name, dtype)
    latest: list[Any] = [None]

    def run() -> None:
        for _ in range(repeats):
            latest[0] = (product or torch.matmul)(a, b)

    def count_wrong() -> int:
        return int((latest[0] != reference).sum())

    workload = Workload(run, count_wrong, units=repeats * 2.0 * size**3, values=size * size)
    result = time_rounds(torch, device, seconds, workload, warm_up=seconds)
    # Once more on the CPU: a device that computes wrongly may also compare wrongly.
    wrong = int((latest[0].cpu() != expected.repeat(copies, copies).to(dtype)).sum())
    return result._replace(wrong=max(result.wrong, wrong))


def operands(torch: Any, depth: int) -> tuple[Any, Any, Any]:
    """Returns 64 rows, 64 columns and their exact product, as integers: the same on every machine and version."""
    left, right = _entries(torch, depth, 1), _entries(torch, depth, 2).T
    return left, right, left @ right


def _sum_in_32_bits(torch: Any) -> None:
    """Keeps cuBLAS from adding up parts of a product in 16 bits, which it may where that is faster."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _entries(torch: Any, depth: int, seed: int) -> Any:
    """Returns 64 x `depth` integers of -LARGEST to LARGEST by a multiplicative hash of the index."""
    index = torch.arange(TABLE * depth, dtype=torch.int64) + (seed << 24)
    mixed = (index * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA77) & 0xFFFFFFFF
    return ((mixed >> 13) % (2 * LARGEST + 1) - LARGEST).reshape(TABLE, depth)


def _dtype(torch: Any, device: ComputeDevice) -> Any:
    if not device.on_gpu:
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device.torch_name)[0] >= 8 else torch.float16


PROBE: Final = Probe("active_matmul", check, MatmulThresholds(), group=ACTIVE)
