"""The speed at which the rank's device multiplies matrices, and whether the product is exactly right: the measurement
of the active probe active_matmul, on each rank of a ring."""

from __future__ import annotations

from laggard.probes.active.matmul import multiply
from laggard.probes.active.measuring.devices import ComputeDevice
from laggard.rings.messages import Computed
from laggard.rings.worker.rank import Rank


def compute(rank: Rank, seconds: float) -> Computed:
    """Measures for `seconds`, after as long a warm-up. An error of CUDA is told, and is none of the ring's own."""
    device = ComputeDevice(f"rank {rank.rank}", "", rank.device)
    try:
        with rank.torch.inference_mode():
            result = multiply(rank.torch, device, seconds)
    except RuntimeError as error:
        return Computed(0.0, 0, 0, error=" ".join(str(error).split())[:300])
    return Computed(result.per_second, result.checked, result.wrong)
