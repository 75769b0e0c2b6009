"""GPU_THROTTLED: clocks lowered by heat, by the hardware's own protection or by the power supply.

The driver counts, by reason, for how long clocks were lowered; the increase since the last snapshot is a share of time.
A power cap alone is no fault: a busy GPU runs at its limit. A power brake of all GPUs at once is the site's, a warning.
Without a snapshot, a reason that holds now is a warning. Whatever the reason, it is critical where most peers at work
are so much faster that they wait for this GPU (rows.py), for longer than a moment.

AMD's firmware counts its own cycles, and by reason those in which clocks were lowered (gpu_metrics 1.6 and newer);
before that a GPU tells what holds now (1.3), or nothing (1.4, 1.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.amd_gpus import AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import IDLE, gpu_peers, is_slower, query_gpus, read_field
from laggard.probes.host.counter_history import CounterHistory, Increase, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Fact, Probe, Ratio, Thresholds, rules, say


@cache
def _names() -> Mapping[str, str]:
    """Those of rules/throttle.ini, by counter."""
    return {row.pattern.split()[-1]: row.says for row in rules("throttle")}


def _bits(maker: str) -> Iterator[tuple[int, str]]:
    for row in rules("throttle"):
        *bits, name = row.pattern.split() if row.kind == maker else ("",)
        yield from ((int(bit), name) for bit in bits if bit != "-")


_MOMENT_NANOSECONDS: Final = 60 * 10**9
"""The time between two looks of an agent: what held for less may have been one spell of heat."""
_WARNING_ONLY: Final = frozenset({"sw_thermal", "board_limit"})
"""Slower, but as designed; and what older drivers count as limits of the board, ordinary power capping perhaps among
it: NVIDIA does not say."""
_NOT_BY_HEAT: Final = ("hw_power_brake", "board_limit", "prochot")
_AMD_SMI: Final = "amd-smi metric --throttle --temperature --power"

_Shares = dict[str, tuple[float, float]]
"""By reason the share of time, and the seconds that it is a share of."""


class ThrottleThresholds(Thresholds, frozen=True):
    """Shares of the time since the last snapshot. A job runs at its slowest GPU's pace for all of that time."""

    warning_ratio: Ratio = 0.02
    critical_ratio: Ratio = 0.2

    def __post_init__(self) -> None:
        if self.warning_ratio > self.critical_ratio:
            raise ValueError("warning_ratio is above critical_ratio: a warning comes first")


def _check_amd(host: Host, thresholds: ThrottleThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = started_amd_gpus(host)
    yield SaveCounters({f"{gpu.address} {name}": value for gpu in gpus for name, value in _amd_counters(gpu).items()})
    for gpu in gpus:
        celsius = {"celsius": {label: sensor.now for label, sensor in gpu.temperatures.items()}}
        if shares := _amd_shares(host.counter_history, gpu):
            yield from _judge_shares(gpu, shares, thresholds, celsius)
        elif bits := (gpu.metrics and gpu.metrics.throttle_bits) or 0:
            active = [name for bit, name in _bits("amd") if bits >> bit & 1]
            told = {"indep_throttle_status": f"{bits:#x}", "reasons_now": sorted({_names()[name] for name in active})}
            yield from _judge_now(gpu, active, {**told, **celsius})
    raise_if_unread(gpus, "metrics", "a table of metrics (gpu_metrics)")
    versions = sorted({gpu.metrics.version for gpu in gpus if gpu.metrics and not _tells_throttling(gpu)})
    if versions:
        raise NotApplicable(f"gpu_metrics {', '.join(versions)} says nothing of lowered clocks")


def _tells_throttling(gpu: AmdGpu) -> bool:
    metrics = gpu.metrics
    return metrics is not None and (metrics.throttle_bits is not None or bool(metrics.residencies))


def _amd_counters(gpu: AmdGpu) -> dict[str, int]:
    if gpu.metrics is None or gpu.metrics.accumulation_counter is None:
        return {}
    return {"cycles": gpu.metrics.accumulation_counter, **gpu.metrics.residencies}


def _amd_shares(history: CounterHistory, gpu: AmdGpu) -> _Shares:
    """The shares of the firmware's cycles since the last snapshot (amd-smi computes its `violation activity` so:
    amdsmi, amd_smi.cc, amdsmi_get_violation_status)."""
    found = _increases(history, gpu.address, _amd_counters(gpu))
    cycles = found.pop("cycles", None)
    if cycles is None or cycles.count <= 0:
        return {}
    return {name: (min(it.count / cycles.count, 1.0), cycles.seconds) for name, it in found.items() if name in _names()}


def _increases(history: CounterHistory, key: str, counters: Mapping[str, int]) -> dict[str, Increase]:
    found = {name: history.increase(f"{key} {name}", value) for name, value in counters.items()}
    return {name: increase for name, increase in found.items() if increase is not None}


def _check_nvidia(host: Host, thresholds: ThrottleThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    """A power brake that is pulled for all GPUs is no GPU's fault: a site does so whose power is short."""
    gpus = query_gpus(host)
    counted = read_field(gpus, "throttled_nanoseconds", "counters of lowered clocks")
    now = read_field(gpus, "clocks_event_reasons", "reasons for lowered clocks")
    yield SaveCounters({f"{gpu.key} {name}": value for gpu, values in counted.values for name, value in values.items()})
    shares_of = {gpu.key: _shares(host.counter_history, gpu) for gpu in gpus}
    peers = [gpu for group in gpu_peers(gpus) for gpu in group] or gpus
    braked = all(shares_of[gpu.key].get("hw_power_brake", (0.0,))[0] >= thresholds.warning_ratio for gpu in peers)
    of_all = frozenset({"hw_power_brake"} if braked else ())
    for gpu in gpus:
        active = _active(gpu.clocks_event_reasons or 0)
        slower = frozenset(active if is_slower(gpu, gpus) else ())
        if shares := shares_of[gpu.key]:
            told = {"reasons_now": active, "celsius": gpu.temperature_celsius}
            yield from _judge_shares(gpu, shares, thresholds, told, of_all, slower)
        else:
            lasting = any((gpu.throttled_nanoseconds or {}).get(it, 0) >= _MOMENT_NANOSECONDS for it in slower)
            yield from _judge_now(gpu, active, {"reasons_now": active}, lasting)
    now.raise_if_incomplete()


def _shares(history: CounterHistory, gpu: Gpu) -> _Shares:
    found = _increases(history, gpu.key, gpu.throttled_nanoseconds or {})
    return {name: (increase.count / 1e9 / increase.seconds, increase.seconds) for name, increase in found.items()}


def _active(reasons: int) -> list[str]:
    """Returns the reasons whose bits are set; hw_slowdown, the general one, only where no bit is more precise."""
    names = [name for bit, name in _bits("nvidia") if reasons >> bit & 1] if reasons > IDLE else []
    return [name for name in names if name != "hw_slowdown"] or names


def _judge_shares(
    gpu: Gpu | AmdGpu,
    shares: _Shares,
    thresholds: ThrottleThresholds,
    told: Mapping[str, object],
    of_all: frozenset[str] = frozenset(),
    slower: frozenset[str] = frozenset(),
) -> Iterator[Finding]:
    """Yields a finding of the worst reason: a critical one before others, then by its share. `of_all`: the reasons
    that hold for all GPUs of the node, which are warnings; `slower`: those that make it slower than its peers now."""
    severities = {
        name: Severity.CRITICAL
        if name in slower or (share >= thresholds.critical_ratio and name not in _WARNING_ONLY | of_all)
        else Severity.WARNING
        for name, (share, _) in shares.items()
        if share >= thresholds.warning_ratio
    }
    if not severities:
        return
    worst = max(severities, key=lambda name: (severities[name] is Severity.CRITICAL, shares[name][0]))
    ratio, seconds = shares[worst]
    share_of_time = {name: round(min(share, 1.0), 4) for name, (share, _) in shares.items()}
    everywhere = ", as of all GPUs of this node" if worst in of_all else ""
    when = f"{min(ratio, 1.0):.0%} of the last {seconds:.0f} s{everywhere}"
    evidence = {"share_of_time": share_of_time, "seconds": round(seconds), **told}
    yield _finding(gpu, worst, when, severities[worst], evidence)


def _judge_now(
    gpu: Gpu | AmdGpu, active: Sequence[str], evidence: Mapping[str, object], lasting: bool = False
) -> Iterator[Finding]:
    """`lasting`: it has been slower than its peers for more than a moment."""
    if active:
        when = f"to {gpu.sm_mhz} MHz, far below its peers" if isinstance(gpu, Gpu) and lasting else "at this moment"
        yield _finding(gpu, active[0], when, Severity.CRITICAL if lasting else Severity.WARNING, evidence)


def _finding(gpu: Gpu | AmdGpu, reason: str, when: str, severity: Severity, evidence: Mapping[str, object]) -> Finding:
    asks = f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.index}" if isinstance(gpu, Gpu) else _AMD_SMI
    kind = f"slowed_{reason}" if reason in _NOT_BY_HEAT else "slowed"
    return say("gpu", kind, gpu.device, evidence, severity, reason=_names()[reason], when=when, command=asks)


PROBE: Final = Probe("gpu_throttle", of_each_maker(_check_nvidia, _check_amd), ThrottleThresholds(), group=GPU)
