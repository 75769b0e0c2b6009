"""NVLINK_ERRORS: NVLinks whose counters of repeated packets, retrainings or checksum errors keep rising.

Of AMD's GPUs those XGMI errors count that could not be corrected (RAS, block xgmi_wafl): no number is public from which
on those that were corrected are too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.amd_gpus import XGMI, AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_non_mig_gpus, read_field
from laggard.probes.host.counter_history import Increase, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Fact, NotNegative, Probe, Thresholds, facts, finding

_HOUR: Final = 3600.0
_WORDS: Final = {"replay": "packets repeated", "recovery": "retrainings", "crc": "checksum errors"}
_FIX: Final = (
    "Watch whether it goes on under load (`nvidia-smi nvlink -e`) and compare with the peers. Then reset all GPUs "
    "together; errors that come back are the board's, the bridge's or the NVSwitch's."
)


_FIX_XGMI: Final = (
    "Such an error ends all jobs on the connected GPUs, which the driver resets together. If it comes back on the same "
    "GPU, have its board reseated or replaced."
)
_DAY: Final = 86400.0


class NvlinkErrorThresholds(Thresholds, frozen=True):
    """Limits for all links of one GPU together. Findings are warnings: links repair what they lose, at a cost."""

    recovery_per_hour: NotNegative = 2.0
    """A retraining stops the link for milliseconds. One may be an accident."""

    replay_per_hour: NotNegative = 600.0
    """Ten a minute: at the links' specified error rate there is about one in an hour of full load."""

    crc_per_hour: NotNegative = 360000.0
    """DCGM's limit, 100 a second (DcgmGPUHardwareLimits.h)."""


def _check_amd(host: Host, thresholds: NvlinkErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = started_amd_gpus(host)
    counted = [(gpu, gpu.ras[XGMI]) for gpu in gpus if XGMI in gpu.ras]
    yield SaveCounters({gpu.address: count.uncorrectable for gpu, count in counted})
    corrected = {gpu.device: count.correctable for gpu, count in counted if count.correctable}
    yield from facts(xgmi_errors_corrected_since_the_driver_was_loaded=corrected)
    for gpu, count in counted:
        recent, since = host.counter_history.recent(gpu.address, count.uncorrectable, _DAY)
        if recent:
            yield _amd_finding(gpu, recent, since)
    raise_if_unread(gpus, "ras", "error counts (RAS)")
    if not counted:
        raise NotApplicable("amdgpu counts no XGMI errors on this node")


def _amd_finding(gpu: AmdGpu, count: int, since: str) -> Finding:
    return finding(
        "NVLINK_ERRORS",
        gpu.device,
        f"{count} {'error' if count == 1 else 'errors'} of its XGMI links not correctable, {since}",
        evidence={"kind": "uncorrectable", "count": count, "since": since, "correctable": gpu.ras[XGMI].correctable},
        fix=_FIX_XGMI,
        commands=("amd-smi metric --ecc-blocks", "amd-smi xgmi -l", "dmesg -T | grep -iE 'xgmi|wafl'"),
    )


def _check_nvidia(host: Host, thresholds: NvlinkErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    reading = read_field(query_non_mig_gpus(host), "link_errors", "counters of NVLink errors")
    yield SaveCounters(
        {f"{gpu.key} {kind}": sum(counts) for gpu, errors in reading.values for kind, counts in errors.items()}
    )
    limits = {
        "recovery": thresholds.recovery_per_hour,
        "replay": thresholds.replay_per_hour,
        "crc": thresholds.crc_per_hour,
    }
    for gpu, errors in reading.values:
        for kind, counts in errors.items():
            increase = host.counter_history.increase(f"{gpu.key} {kind}", sum(counts), _HOUR)
            if increase is not None and kind in limits and increase.per(_HOUR) > limits[kind]:
                yield _finding(gpu, kind, increase, counts, limits[kind])
    reading.raise_if_incomplete()


def _finding(gpu: Gpu, kind: str, increase: Increase, counts: tuple[int, ...], limit: float) -> Finding:
    """Makes the finding of one GPU; the counts by link, since the driver was loaded, show which link it is."""
    by_link = {str(link): count for link, count in enumerate(counts) if count} if len(counts) > 1 else {}
    return finding(
        "NVLINK_ERRORS",
        gpu.device,
        f"{increase.count} {_WORDS[kind]} on its NVLinks in the last {increase.seconds:.0f} s",
        evidence={"kind": kind, "limit_per_hour": limit, "since_driver_load_by_link": by_link},
        fix=_FIX,
        commands=(f"nvidia-smi nvlink -e -i {gpu.index}", f"nvidia-smi nvlink -s -i {gpu.index}"),
    )


PROBE: Final = Probe("nvlink_errors", of_each_maker(_check_nvidia, _check_amd), NvlinkErrorThresholds(), group=GPU)
