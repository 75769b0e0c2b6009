"""GPU_ECC_UNCORRECTED: memory errors that ECC could not correct, in the last day or since boot.

The board's lifetime count is no fault: the rows that it counts were remapped long ago. The driver's count starts at
zero when the driver is loaded, and all of it counts until the counter history reaches back a day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.counter_history import CounterHistory, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Drain the node and reset the GPU, which remaps the faulty row. If errors come back, run "
    "`dcgmi diag -r 3` and return the board."
)


class EccThresholds(Thresholds, frozen=True):
    window_seconds: float = 86400.0
    """How long an error counts."""


def check(host: Host, thresholds: EccThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "ecc_volatile", "ECC")
    yield SaveCounters({gpu.key: count for gpu, count in reading.values})
    aggregate = {gpu.device: gpu.ecc_aggregate for gpu in gpus if gpu.ecc_aggregate}
    if aggregate:
        yield Fact("uncorrected_in_the_boards_life", aggregate)
    for gpu, count in reading.values:
        recent, since = _recent(host.counter_history, gpu.key, count, thresholds.window_seconds)
        if recent > 0:
            yield finding(
                "GPU_ECC_UNCORRECTED",
                gpu.device,
                f"{recent} memory {'error' if recent == 1 else 'errors'} not correctable, {since}",
                evidence={
                    "uncorrected": recent,
                    "since": since,
                    "uncorrected_since_driver_load": count,
                    "uncorrected_in_life": gpu.ecc_aggregate,
                },
                fix=_FIX,
                commands=(
                    f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}",
                    f"nvidia-smi --gpu-reset -i {gpu.index}",
                ),
            )
    reading.raise_if_incomplete()


def _recent(history: CounterHistory, key: str, count: int, seconds: float) -> tuple[int, str]:
    """Returns the errors of the last `seconds`, or all since the driver was loaded where no snapshot is that old; and
    the words for which of the two it is."""
    increase = history.increase(key, count, seconds)
    if increase is None or increase.seconds < seconds:
        return count, "since the driver was loaded"
    return increase.count, f"in the last {increase.seconds / 3600:.0f} h"


PROBE: Final = Probe("gpu_ecc", check, EccThresholds(), group=GPU)
