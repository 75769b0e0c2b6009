"""GPU_ROW_REMAP_PENDING and GPU_ROW_REMAP_FAILED: a faulty part of a GPU waits for its spare, or gets none.

Rows of HBM have spares since Ampere; whole channels of the memory, and processors (TPC), since Blackwell. AMD's GPUs
have no spares that the driver tells of: it takes bad pages out of use, of which it allows so many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import bad_page_threshold, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.amdgpu_log import find_amdgpu_events, open_kinds
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.gpu.rules.amd_findings import judge_bad_pages
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu, RemappedRows
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, finding

_FIX_PENDING: Final = (
    "Reset the GPU when its job is done. Until then the driver keeps the faulty page out of use: what runs may go on."
)
_FIX_FAILED: Final = "Take the node out of service and return the board: there is no spare row for the faulty one."


class RowThresholds(Thresholds, frozen=True):
    """Nothing to set: the device itself reports both."""


def check(host: Host, thresholds: RowThresholds) -> Iterator[Finding | Fact]:
    yield from of_each_maker(host, nvidia=_check_nvidia(host), amd=_check_amd(host))


def _check_amd(host: Host) -> Iterator[Finding | Fact]:
    """The driver's own limit is no public number: that it is passed stands in the kernel's log, at each boot anew."""
    gpus, threshold = started_amd_gpus(host), bad_page_threshold(host)
    retired = {gpu.device: gpu.bad_pages.retired for gpu in gpus if gpu.bad_pages and gpu.bad_pages.retired}
    if retired:
        yield Fact("bad_pages_out_of_use", retired)
        yield Fact("bad_page_threshold", "the driver's own" if threshold is None else threshold)
    try:
        events, log_error = find_amdgpu_events(host.kernel_log()), ""
    except Unknown as error:
        events, log_error = [], str(error)
    for gpu in gpus:
        yield from judge_bad_pages(gpu, threshold, open_kinds(events, gpu.address))
    if log_error and threshold is None:
        raise Unknown(f"whether a GPU has more bad pages than its driver allows: {log_error}")
    raise_if_unread(gpus, "bad_pages", "a list of bad pages")


def _check_nvidia(host: Host) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "rows", "row remapping")
    for gpu, rows in reading.values:
        if rows.failed:
            yield _finding(
                "GPU_ROW_REMAP_FAILED", gpu, rows, "could not replace a faulty row of its memory", _FIX_FAILED
            )
        if rows.pending:
            summary = "has replaced a faulty row of its memory, in effect from the next reset on"
            yield _finding("GPU_ROW_REMAP_PENDING", gpu, rows, summary, _FIX_PENDING)
    for gpu in gpus:
        yield from _judge_repair(gpu)
    reading.raise_if_incomplete()


def _judge_repair(gpu: Gpu) -> Iterator[Finding]:
    if gpu.unrepairable_memory:
        summary = "has memory that cannot be repaired"
        yield _finding("GPU_ROW_REMAP_FAILED", gpu, gpu.rows, summary, _FIX_FAILED)
    for part, pending in (("channel", gpu.repair and gpu.repair.channel), ("tpc", gpu.repair and gpu.repair.tpc)):
        if pending:
            what = "its memory" if part == "channel" else "its processors"
            summary = f"has a repair of {what} pending until the next reset ({part} repair)"
            yield _finding("GPU_ROW_REMAP_PENDING", gpu, gpu.rows, summary, _FIX_PENDING)


def _finding(code: str, gpu: Gpu, rows: RemappedRows | None, summary: str, fix: str) -> Finding:
    evidence = {"correctable": rows.correctable, "uncorrectable": rows.uncorrectable} if rows else {}
    commands = (f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}", f"nvidia-smi --gpu-reset -i {gpu.index}")
    return finding(code, gpu.device, summary, evidence=evidence, fix=fix, commands=commands)


PROBE: Final = Probe("gpu_rows", check, RowThresholds(), group=GPU)
