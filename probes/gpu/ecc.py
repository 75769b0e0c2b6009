"""GPU_ECC_UNCORRECTED: memory errors that ECC could not correct, in the last day or since boot.

Ampere and newer contain such an error: the program that met it ends, the page is not used again, and the GPU takes new
work at once. That is a warning. It is critical where the GPU has to be reset first, or has no way to contain it.

A GPU whose SRAM has passed the number of errors that its maker allows says so itself: critical.

The board's lifetime count is no fault: the rows that it counts were remapped long ago. The driver's count starts at
zero when the driver is loaded, and all of it counts until the counter history reaches back a day.

Of AMD's GPUs the errors of all blocks count that amdgpu calls uncorrectable (RAS), but those of the links between them.
The driver ends the program that used the memory, or resets the GPU, and keeps the page out of use: a warning, unless
the log says that this did not succeed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.amd_gpus import RESET, XGMI, AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.amdgpu_log import open_kinds, read_amdgpu_events, why_unusable
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.gpu.rules.xid_rules import NOTHING, explain_recovery_action
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.nvml.model import UNSUPPORTED, Gpu
from laggard.probes.probe import GPU, Fact, NotNegative, Probe, Thresholds, facts, finding

_FIX: Final = {
    Severity.CRITICAL: "Drain the node and reset the GPU, which remaps the faulty row. If errors come back, run "
    "`dcgmi diag -r 3` and return the board.",
    Severity.WARNING: "The GPU takes new work: only the job that met the error is lost. Reset the GPU when it is idle, "
    "which remaps the faulty row. If errors come back, run `dcgmi diag -r 3` and return the board.",
}
_FIX_AMD: Final = {
    Severity.CRITICAL: RESET,
    Severity.WARNING: "The driver has ended the program that met the error, or reset the GPU, and keeps the page out "
    "of use: the GPU takes new work. If errors come back, have it replaced.",
}
_NOT_CONTAINED: Final = frozenset({48, 95})


class EccThresholds(Thresholds, frozen=True):
    window_seconds: NotNegative = 86400.0
    """The time for which an error counts."""


def _check_amd(host: Host, thresholds: EccThresholds) -> Iterator[Finding | Fact | SaveCounters]:
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
            yield _amd_finding(gpu, blocks, since, why_unusable(open_kinds(log, gpu.address)))
    raise_if_unread(gpus, "ras", "error counts (RAS)")


def _check_nvidia(host: Host, thresholds: EccThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "ecc_volatile", "ECC")
    yield SaveCounters({gpu.key: count for gpu, count in reading.values})
    yield from facts(
        uncorrected_in_the_boards_life={gpu.device: gpu.ecc_aggregate for gpu in gpus if gpu.ecc_aggregate}
    )
    for gpu, count in reading.values:
        recent, since = host.counter_history.recent(gpu.key, count, thresholds.window_seconds)
        if recent > 0:
            yield _nvidia_finding(gpu, recent, since, _why_unusable(host, gpu, thresholds.window_seconds))
    yield from _judge_sram(gpus)
    reading.raise_if_incomplete()


def _amd_finding(gpu: AmdGpu, blocks: Mapping[str, int], since: str, unusable: str) -> Finding:
    total = sum(blocks.values())
    evidence = {
        "uncorrected": total,
        "by_block": blocks,
        "uncorrected_since_driver_load": {block: count.uncorrectable for block, count in gpu.ras.items()},
    }
    summary = (
        f"{total} {'error' if total == 1 else 'errors'} not correctable (RAS, {', '.join(sorted(blocks))}), {since}"
    )
    commands = ("amd-smi metric --ecc-blocks", "amd-smi bad-pages", "dmesg -T | grep amdgpu")
    return _finding(gpu, summary, unusable, evidence, _FIX_AMD, commands)


def _nvidia_finding(gpu: Gpu, recent: int, since: str, unusable: str) -> Finding:
    evidence = {
        "uncorrected": recent,
        "uncorrected_since_driver_load": gpu.ecc_volatile,
        "uncorrected_in_life": gpu.ecc_aggregate,
        "recovery_action": gpu.recovery_action,
    }
    summary = f"{recent} memory {'error' if recent == 1 else 'errors'} not correctable, {since}"
    commands = (f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}", f"nvidia-smi --gpu-reset -i {gpu.index}")
    return _finding(gpu, summary, unusable, evidence, _FIX, commands)


def _finding(
    gpu: Gpu | AmdGpu,
    summary: str,
    unusable: str,
    evidence: Mapping[str, object],
    fix: Mapping[Severity, str],
    commands: Sequence[str],
) -> Finding:
    """`unusable`: why the GPU takes no new work; empty where nothing shows that."""
    severity = Severity.CRITICAL if unusable else Severity.WARNING
    summary += f"; {unusable}" if unusable else ""
    return finding(
        "GPU_ECC_UNCORRECTED",
        gpu.device,
        summary,
        evidence=evidence,
        fix=fix[severity],
        commands=commands,
        severity=severity,
    )


def _judge_sram(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """The GPU itself compares its SRAM's errors with the number from which on NVIDIA takes a board back."""
    for gpu in gpus:
        if gpu.sram_threshold_exceeded:
            yield finding(
                "GPU_ECC_UNCORRECTED",
                gpu.device,
                "has had more uncorrectable errors of its SRAM than its maker allows (threshold exceeded)",
                evidence={"sram_threshold_exceeded": True, "uncorrected_in_life": gpu.ecc_aggregate},
                fix="Take the node out of service and return the board.",
                commands=(f"nvidia-smi -q -d ECC -i {gpu.index}",),
                severity=Severity.CRITICAL,
            )


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


PROBE: Final = Probe("gpu_ecc", of_each_maker(_check_nvidia, _check_amd), EccThresholds(), group=GPU)
