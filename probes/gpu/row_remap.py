"""GPU_ROW_REMAP_PENDING and GPU_ROW_REMAP_FAILED: a faulty row of HBM waits for its spare row, or gets none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu, RemappedRows
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX_PENDING: Final = (
    "Reset the GPU when its job is done. Until then the driver keeps the faulty page out of use: what runs may go on."
)
_FIX_FAILED: Final = "Take the node out of service and return the board: there is no spare row for the faulty one."


class RowThresholds(Thresholds, frozen=True):
    """Nothing to set: the device itself reports both."""


def check(host: Host, thresholds: RowThresholds) -> Iterator[Finding | Fact]:
    reading = read_field(query_gpus(host), "rows", "row remapping")
    for gpu, rows in reading.values:
        if rows.failed:
            yield _finding(
                "GPU_ROW_REMAP_FAILED", gpu, rows, "could not replace a faulty row of its memory", _FIX_FAILED
            )
        if rows.pending:
            summary = "has replaced a faulty row of its memory, in effect from the next reset on"
            yield _finding("GPU_ROW_REMAP_PENDING", gpu, rows, summary, _FIX_PENDING)
    reading.raise_if_incomplete()


def _finding(code: str, gpu: Gpu, rows: RemappedRows, summary: str, fix: str) -> Finding:
    evidence = {"correctable": rows.correctable, "uncorrectable": rows.uncorrectable}
    commands = (f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}", f"nvidia-smi --gpu-reset -i {gpu.index}")
    return finding(code, gpu.device, summary, evidence=evidence, fix=fix, commands=commands)


PROBE: Final = Probe("gpu_rows", check, RowThresholds(), group=GPU)
