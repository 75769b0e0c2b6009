"""GPU_ROW_REMAP_PENDING and GPU_ROW_REMAP_FAILED: a faulty part of a GPU waits for its spare, or gets none.

Rows of HBM have spares since Ampere; whole channels of the memory, and processors (TPC), since Blackwell. AMD's GPUs
have no spares that the driver tells of: it takes bad pages out of use, of which it allows so many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import (
    REPLACE,
    AmdGpu,
    BadPages,
    bad_page_threshold,
    raise_if_unread,
    started_amd_gpus,
)
from laggard.probes.gpu.model.amdgpu_log import Kind, open_kinds, read_amdgpu_events
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, finding

_FIX_PENDING: Final = (
    "Reset the GPU when its job is done. Until then the driver keeps the faulty page out of use: what runs may go on."
)
_FIX_FAILED: Final = "Take the node out of service and return the board: there is no spare row for the faulty one."


def _check_amd(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    """The driver's own limit is no public number: that it is passed stands in the kernel's log, at each boot anew."""
    gpus, threshold = started_amd_gpus(host), bad_page_threshold(host)
    retired = {gpu.device: gpu.bad_pages.retired for gpu in gpus if gpu.bad_pages and gpu.bad_pages.retired}
    if retired:
        yield Fact("bad_pages_out_of_use", retired)
        yield Fact("bad_page_threshold", "the driver's own" if threshold is None else threshold)
    events, log_error = read_amdgpu_events(host)
    for gpu in gpus:
        yield from _judge_bad_pages(gpu, threshold, open_kinds(events, gpu.address))
    if log_error and threshold is None:
        raise Unknown(f"whether a GPU has more bad pages than its driver allows: {log_error}")
    raise_if_unread(gpus, "bad_pages", "a list of bad pages")


def _judge_bad_pages(gpu: AmdGpu, threshold: int | None, kinds: Collection[Kind]) -> Iterator[Finding]:
    """`threshold`: the administrator's, None for none; `kinds`: of the GPU's events in the log since boot."""
    pages = gpu.bad_pages or BadPages(0, 0, 0)
    evidence = {**(gpu.bad_pages._asdict() if gpu.bad_pages else {}), "bad_page_threshold": threshold}
    too_many = ""
    if Kind.THRESHOLD in kinds:
        too_many = "has more bad pages of memory than its driver allows: it says so in the kernel's log"
    elif threshold is not None and sum(pages) > threshold:
        too_many = f"has {sum(pages)} bad pages of memory, and {threshold} are allowed (bad_page_threshold)"
    elif pages.failed:
        too_many = f"could not take {_counted(pages.failed)} of memory out of use, where programs may use it"
    if too_many:
        commands = ("amd-smi bad-pages", "dmesg -T | grep -i 'bad page\\|threshold'")
        yield finding("GPU_ROW_REMAP_FAILED", gpu.device, too_many, evidence=evidence, fix=REPLACE, commands=commands)
    if pages.pending:
        yield finding(
            "GPU_ROW_REMAP_PENDING",
            gpu.device,
            f"has {_counted(pages.pending)} of memory that a program still uses, out of use when it ends",
            evidence=pages._asdict(),
            fix="Let the job end; then reset the GPU, or load the driver anew.",
            commands=("amd-smi bad-pages",),
        )


def _counted(pages: int) -> str:
    return f"{pages} bad page{'' if pages == 1 else 's'}"


def _check_nvidia(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    """The rows' own findings come first, then those of the repairs that newer GPUs have."""
    gpus = query_gpus(host)
    reading = read_field(gpus, "rows", "row remapping")
    for gpu, rows in reading.values:
        if rows.failed:
            yield _failed(gpu, "could not replace a faulty row of its memory")
        if rows.pending:
            yield _pending(gpu, "has replaced a faulty row of its memory, in effect from the next reset on")
    for gpu in gpus:
        if gpu.unrepairable_memory:
            yield _failed(gpu, "has memory that cannot be repaired")
        if gpu.repair and gpu.repair.channel:
            yield _pending(gpu, "has a repair of its memory pending until the next reset (channel repair)")
        if gpu.repair and gpu.repair.tpc:
            yield _pending(gpu, "has a repair of its processors pending until the next reset (tpc repair)")
    reading.raise_if_incomplete()


def _failed(gpu: Gpu, summary: str) -> Finding:
    return _finding("GPU_ROW_REMAP_FAILED", gpu, summary, _FIX_FAILED)


def _pending(gpu: Gpu, summary: str) -> Finding:
    return _finding("GPU_ROW_REMAP_PENDING", gpu, summary, _FIX_PENDING)


def _finding(code: str, gpu: Gpu, summary: str, fix: str) -> Finding:
    evidence = {"correctable": gpu.rows.correctable, "uncorrectable": gpu.rows.uncorrectable} if gpu.rows else {}
    commands = (f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}", f"nvidia-smi --gpu-reset -i {gpu.index}")
    return finding(code, gpu.device, summary, evidence=evidence, fix=fix, commands=commands)


PROBE: Final = Probe("gpu_rows", of_each_maker(_check_nvidia, _check_amd), Thresholds(), group=GPU)
