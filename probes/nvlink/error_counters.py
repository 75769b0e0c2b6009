"""NVLINK_ERRORS: NVLinks whose counters of repeated packets, retrainings or checksum errors keep rising.

Of AMD's GPUs those XGMI errors count that could not be corrected (RAS, block xgmi_wafl): no number is public from which
on those that were corrected are too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.amd_gpus import XGMI, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, query_non_mig_gpus, read_field
from laggard.probes.host.counter_history import Increase, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import DAMAGE_OF_LINKS, Gpu
from laggard.probes.probe import GPU, Fact, NotNegative, Probe, Thresholds, facts, say

_HOUR: Final = 3600.0
_WORDS: Final = {
    "replay": "packets repeated",
    "recovery": "retrainings",
    "crc": "checksum errors",
    "effective": "errors that correction left",
    **dict.fromkeys(DAMAGE_OF_LINKS, "packets damaged"),
}
_DAY: Final = 86400.0


class NvlinkErrorThresholds(Thresholds, frozen=True):
    """Limits for all links of one GPU together. Findings are warnings: links repair what they lose, at a cost."""

    recovery_per_hour: NotNegative = 2.0
    """A retraining stops the link for milliseconds. One may be an accident."""

    replay_per_hour: NotNegative = 600.0
    """Ten a minute: at the links' specified error rate there is about one in an hour of full load."""

    crc_per_hour: NotNegative = 360000.0
    """DCGM's limit, 100 a second (DcgmGPUHardwareLimits.h)."""

    damaged_per_hour: NotNegative = 60.0
    """Packets of one kind that NVLink 5 counts as damaged: DCGM's limit, one a minute (DcgmHealthWatch.cpp)."""

    effective_per_hour: NotNegative = 25920.0
    """Errors of NVLink 5 behind its error correction: 1e-12 of the bits, DCGM's limit, of 18 links at 400 Gbit/s."""


def _check_amd(host: Host, thresholds: NvlinkErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = started_amd_gpus(host)
    counted = [(gpu, gpu.ras[XGMI]) for gpu in gpus if XGMI in gpu.ras]
    yield SaveCounters({gpu.address: count.uncorrectable for gpu, count in counted})
    corrected = {gpu.device: count.correctable for gpu, count in counted if count.correctable}
    yield from facts(xgmi_errors_corrected_since_the_driver_was_loaded=corrected)
    for gpu, count in counted:
        recent, since = host.counter_history.recent(gpu.address, count.uncorrectable, _DAY)
        if recent:
            told = {"count": recent, "noun": "error" if recent == 1 else "errors", "since": since}
            evidence = {"kind": "uncorrectable", "count": recent, "since": since, "correctable": count.correctable}
            yield say("gpu", "xgmi_errors", gpu.device, evidence, **told)
    raise_if_unread(gpus, "ras", "error counts (RAS)")
    if not counted:
        raise NotApplicable("amdgpu counts no XGMI errors on this node")


def _check_nvidia(host: Host, thresholds: NvlinkErrorThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    reading = read_field(query_non_mig_gpus(host), "link_errors", "counters of NVLink errors")
    yield SaveCounters(
        {f"{gpu.key} {kind}": sum(counts) for gpu, errors in reading.values for kind, counts in errors.items()}
    )
    limits = {
        "recovery": thresholds.recovery_per_hour,
        "replay": thresholds.replay_per_hour,
        "crc": thresholds.crc_per_hour,
        "effective": thresholds.effective_per_hour,
        **dict.fromkeys(DAMAGE_OF_LINKS, thresholds.damaged_per_hour),
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
    evidence = {"kind": kind, "limit_per_hour": limit, "since_driver_load_by_link": by_link}
    seconds = f"{increase.seconds:.0f}"
    named = {"count": increase.count, "what": _WORDS[kind], "seconds": seconds, "index": gpu.index}
    return say("gpu", "nvlink_errors", gpu.device, evidence, **named)


# PCIE_AER_ERRORS of GPUs, by the packets that their PCIe links repeat: also where a guest sees no AER.


class ReplayThresholds(Thresholds, frozen=True):
    replays_per_hour: NotNegative = 1800.0
    """As the probe pcie_errors has it for AER: DCGM fails a GPU from 31 a minute on, at 32 GT/s and 16 lanes."""


def check_replays(host: Host, thresholds: ReplayThresholds) -> Iterator[Finding | SaveCounters]:
    reading = read_field(query_gpus(host), "pcie_replays", "a counter of PCIe replays")
    yield SaveCounters({gpu.key: count for gpu, count in reading.values})
    for gpu, count in reading.values:
        increase = host.counter_history.increase(gpu.key, count, _HOUR)
        if increase is not None and increase.per(_HOUR) > thresholds.replays_per_hour:
            evidence = {"new": increase.count, "seconds": round(increase.seconds), "total": count}
            told = {"count": increase.count, "minutes": f"{increase.seconds / 60:.0f}", "address": gpu.bus_id}
            yield say("gpu", "replays", gpu.device, evidence, **told)
    if not reading.values:
        raise NotApplicable("no GPU tells how often its PCIe link repeated a packet")


PROBES: Final = (
    Probe("nvlink_errors", of_each_maker(_check_nvidia, _check_amd), NvlinkErrorThresholds(), group=GPU),
    Probe("pcie_replays", check_replays, ReplayThresholds(), group=GPU),
)
