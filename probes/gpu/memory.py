"""The memory of GPUs: errors that ECC could not correct in the last day or since boot (GPU_ECC_UNCORRECTED), and faulty
parts that wait for their spare or get none (GPU_ROW_REMAP_PENDING and _FAILED, GPU_INFOROM_CORRUPTED).

Ampere and newer contain such an error: the program that met it ends, the page is not used again, and the GPU takes new
work at once. That is a warning. It is critical where the GPU has to be reset first, or has no way to contain it. The
board's lifetime count is no fault: the rows that it counts were remapped long ago. The driver's count starts at zero
when the driver is loaded, and all of it counts until the counter history reaches back a day.

Of AMD's GPUs the errors of all blocks count that amdgpu calls uncorrectable (RAS), but those of the links between them.
The driver ends the program that used the memory, or resets the GPU, and keeps the page out of use: a warning, unless
the log says that this did not succeed.

Rows of HBM have spares since Ampere, whole channels of the memory, and processors (TPC), since Blackwell; older boards
retire pages. AMD's GPUs have no spares that the driver tells of: it takes bad pages out of use, up to a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import (
    REPLACE,
    RESET,
    XGMI,
    AmdGpu,
    BadPages,
    bad_page_threshold,
    raise_if_unread,
    started_amd_gpus,
)
from laggard.probes.gpu.model.amdgpu_log import Kind, open_kinds, read_amdgpu_events, why_unusable
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.gpu.rules.xid_rules import NOTHING, explain_recovery_action
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.nvml.model import UNSUPPORTED, Gpu
from laggard.probes.probe import GPU, Fact, NotNegative, Probe, Thresholds, facts, say

_NOT_CONTAINED: Final = frozenset({48, 95})
MOST_ROWS: Final = 512
"""The rows that a GPU can replace (NVIDIA, GPU memory error management; DCGM fails a board that has)."""
MOST_PAGES: Final = 63
"""The retired pages from which on DCGM fails a board (DcgmHealthWatch.cpp): it can retire 64."""


class EccThresholds(Thresholds, frozen=True):
    window_seconds: NotNegative = 86400.0
    """The time for which an error counts."""


def _check_amd_errors(host: Host, thresholds: EccThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = started_amd_gpus(host)
    yield SaveCounters(
        {f"{gpu.address} {block}": count.uncorrectable for gpu in gpus for block, count in gpu.ras.items()}
    )
    sums = ((gpu.device, sum(count.correctable for count in gpu.ras.values())) for gpu in gpus)
    yield from facts(corrected_since_the_driver_was_loaded={name: count for name, count in sums if count})
    log, _ = read_amdgpu_events(host)  # where it cannot be read the probe gpu_xid is unknown
    for gpu in gpus:
        recent = {
            block: host.counter_history.recent(f"{gpu.address} {block}", count.uncorrectable, thresholds.window_seconds)
            for block, count in gpu.ras.items()
            if block != XGMI
        }
        blocks = {block: count for block, (count, _) in recent.items() if count > 0}
        if blocks:
            since = next(words for count, words in recent.values() if count > 0)
            loaded = {block: count.uncorrectable for block, count in gpu.ras.items()}
            evidence = {"by_block": blocks, "uncorrected_since_driver_load": loaded}
            unusable = why_unusable(open_kinds(log, gpu.address))
            yield _errors("ecc_amd", gpu, sum(blocks.values()), since, unusable, evidence,
                          blocks=", ".join(sorted(blocks)), reset=RESET)  # fmt: skip
    raise_if_unread(gpus, "ras", "error counts (RAS)")


def _check_nvidia_errors(host: Host, thresholds: EccThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "ecc_volatile", "ECC")
    yield SaveCounters({gpu.key: count for gpu, count in reading.values})
    yield from facts(
        uncorrected_in_the_boards_life={gpu.device: gpu.ecc_aggregate for gpu in gpus if gpu.ecc_aggregate}
    )
    for gpu, count in reading.values:
        recent, since = host.counter_history.recent(gpu.key, count, thresholds.window_seconds)
        if recent > 0:
            unusable = _why_unusable(host, gpu, thresholds.window_seconds)
            evidence = {
                "uncorrected_since_driver_load": gpu.ecc_volatile,
                "uncorrected_in_life": gpu.ecc_aggregate,
                "recovery_action": gpu.recovery_action,
            }
            yield _errors("ecc", gpu, recent, since, unusable, evidence, index=gpu.index)
    for gpu in gpus:
        if gpu.sram_threshold_exceeded:  # the GPU itself compares with the number from which on NVIDIA takes it back
            evidence = {"sram_threshold_exceeded": True, "uncorrected_in_life": gpu.ecc_aggregate}
            yield say("gpu", "sram", gpu.device, evidence, index=gpu.index)
    reading.raise_if_incomplete()


def _errors(
    kind: str,
    gpu: Gpu | AmdGpu,
    count: int,
    since: str,
    unusable: str,
    evidence: Mapping[str, object],
    /,
    **named: object,
) -> Finding:
    """`unusable`: why the GPU takes no new work; empty where nothing shows that."""
    noun = "error" if count == 1 else "errors"
    told = {"count": count, "noun": noun, "since": since, "unusable": unusable}
    return say("gpu", kind + "_open" * bool(unusable), gpu.device, {"uncorrected": count, **evidence}, **told, **named)


def _why_unusable(host: Host, gpu: Gpu, seconds: float) -> str:
    """Returns why the GPU takes no new work before a reset; empty where nothing shows that. The driver's own request
    counts (NVML has it since driver 570), and without it what the driver logged. A GPU in MIG mode does not tell of its
    remapped rows (nvml.h, nvmlDeviceGetRemappedRows), whatever its age: MIG came with Ampere, which contains errors."""
    if gpu.rows is not None and gpu.rows.failed:
        return "a faulty row has no spare"
    if gpu.recovery_action == NOTHING:
        return ""
    if gpu.recovery_action is not None:
        advice, severity = explain_recovery_action(gpu.recovery_action)
        return f"the driver asks to {advice}" if severity is Severity.CRITICAL else ""
    if gpu.errors.get("rows") == UNSUPPORTED and not gpu.mig:
        return "boards of this age cannot contain it"
    codes = sorted(_logged(host, gpu, seconds))
    return f"not contained (Xid {', '.join(map(str, codes))})" if codes else ""


def _logged(host: Host, gpu: Gpu, seconds: float) -> set[int]:
    """Returns the Xids of this GPU that say that an error was not contained, and that no reset has closed since. A log
    that cannot be read has none: the probe gpu_xid is unknown then."""
    try:
        lines, uptime = find_xids(host.kernel_log()), read_uptime(host)
    except Unknown:
        return set()
    return {
        line.code
        for line in lines
        if line.code in _NOT_CONTAINED
        and not line.closed_by
        and f"{line.bus_id}." in (gpu.bus_id or "")
        and (line.seconds is None or line.seconds >= uptime - seconds)
    }


def _check_amd_pages(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
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
        yield say("gpu", "bad_pages", gpu.device, evidence, told=too_many, replace=REPLACE)
    if pages.pending:
        yield say("gpu", "bad_pages_pending", gpu.device, pages._asdict(), pages=_counted(pages.pending))


def _counted(pages: int) -> str:
    return f"{pages} bad page{'' if pages == 1 else 's'}"


_STATES: Final[tuple[tuple[str, Callable[[Gpu], object]], ...]] = (
    ("row_failed", lambda gpu: gpu.rows and gpu.rows.failed),
    ("row_pending", lambda gpu: gpu.rows and gpu.rows.pending),
    ("rows_used_up", lambda gpu: gpu.rows and gpu.rows.uncorrectable >= MOST_ROWS and not gpu.rows.failed),
    ("pages_used_up", lambda gpu: (gpu.retired_pages or 0) >= MOST_PAGES),
    ("page_pending", lambda gpu: gpu.retirement_pending),
    ("unrepairable", lambda gpu: gpu.unrepairable_memory),
    ("channel_repair", lambda gpu: gpu.repair and gpu.repair.channel),
    ("tpc_repair", lambda gpu: gpu.repair and gpu.repair.tpc),
    ("inforom", lambda gpu: gpu.inforom_valid is False),
)
"""By section of rules/gpu.ini: whether a GPU is in this state."""


def _check_nvidia_states(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "rows", "row remapping")
    yield from _judge_states(gpus)
    reading.raise_if_incomplete()


def _judge_states(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        rows = {"correctable": gpu.rows.correctable, "uncorrectable": gpu.rows.uncorrectable} if gpu.rows else {}
        evidence = {**rows, **({} if gpu.retired_pages is None else {"retired_pages": gpu.retired_pages})}
        named = {"index": gpu.index, "rows": rows.get("uncorrectable"), "pages": gpu.retired_pages}
        yield from (say("gpu", kind, gpu.device, evidence, **named) for kind, is_so in _STATES if is_so(gpu))


PROBES: Final = (
    Probe("gpu_ecc", of_each_maker(_check_nvidia_errors, _check_amd_errors), EccThresholds(), group=GPU),
    Probe("gpu_rows", of_each_maker(_check_nvidia_states, _check_amd_pages), Thresholds(), group=GPU),
)
