"""NVLINK_DOWN: a GPU with fewer NVLinks up than its board has, than it had since boot, or than its peers have up.

With NVSwitches every link of a board ends in one: fewer are a fault. Without them bridges connect some GPUs and use
some of their links: a GPU without any link up has no bridge, and one with fewer than its peers may have a smaller one.

Of AMD's GPUs the XGMI links are judged, by the same measures, where the firmware tells their state (gpu_metrics 1.7 and
newer). A board does not use all that its GPUs have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.amd_gpus import AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import has_nvswitches, query_non_mig_gpus, read_field
from laggard.probes.host.counter_history import CounterHistory, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Count, Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Look for Xid 74 or 144 to 150 in the kernel's log and restart the fabric manager; reset all GPUs together. If the "
    "same links stay down, have the board (or the bridge) reseated or replaced."
)


_FIX_XGMI: Final = (
    "Look for `link training failed` in the kernel's log and power the node off and on. If the same links stay down, "
    "have the boards reseated or replaced."
)
_MIN_PEERS: Final = 3


class NvlinkThresholds(Thresholds, frozen=True):
    expected: Count | None = None
    """NVLinks that are up on each GPU of this kind of node. Not set: with NVSwitches all of the board's, else as many
    as the GPU had since boot, and as most GPUs of this node have that have any."""


class _Expected(NamedTuple):
    """The number of links that should be up, and by which measure."""

    links: int
    source: str
    severity: Severity = Severity.CRITICAL


_Readings = Sequence[tuple[Gpu, tuple[bool, ...]]]


def check(host: Host, thresholds: NvlinkThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    yield from of_each_maker(host, nvidia=_check_nvidia(host, thresholds), amd=_check_amd(host, thresholds.expected))


def _check_amd(host: Host, profile: int | None) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = started_amd_gpus(host)
    telling = [gpu for gpu in gpus if gpu.metrics and any(state is not None for state in gpu.metrics.xgmi_links)]
    up = {gpu.address: sum(state or 0 for state in gpu.metrics.xgmi_links) for gpu in telling if gpu.metrics}
    most = {address: max(count, _most_before(host.counter_history, address)) for address, count in up.items()}
    yield Fact("links_up", {gpu.device: up[gpu.address] for gpu in telling})
    yield SaveCounters(most)
    for gpu in telling:
        peers = [up[other.address] for other in telling if other.device_id == gpu.device_id]
        expected = _expected_of_amd(gpu.address, peers, profile, most)
        if up[gpu.address] < expected.links:
            yield _amd_finding(gpu, up[gpu.address], expected)
    raise_if_unread(gpus, "metrics", "a table of metrics (gpu_metrics)")
    if not telling:
        raise NotApplicable("gpu_metrics of these GPUs does not tell which XGMI links are up (it does from 1.7 on)")


def _expected_of_amd(address: str, peers: list[int], profile: int | None, most: Mapping[str, int]) -> _Expected:
    """`peers`: the links up of all GPUs of this model."""
    if profile is not None:
        return _Expected(profile, "profile")
    common = majority(peers, _MIN_PEERS) or 0
    if most[address] > common:
        return _Expected(most[address], "earlier in this boot")
    return _Expected(common, "peers", Severity.WARNING)


def _amd_finding(gpu: AmdGpu, up: int, expected: _Expected) -> Finding:
    return finding(
        "NVLINK_DOWN",
        gpu.device,
        f"{up} of {expected.links} XGMI links are up",
        evidence={"up": up, "expected": expected.links, "expected_from": expected.source},
        fix=_FIX_XGMI,
        commands=("amd-smi xgmi -l", "dmesg -T | grep -iE 'xgmi|wafl'"),
        severity=expected.severity,
    )


def _check_nvidia(host: Host, thresholds: NvlinkThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = query_non_mig_gpus(host)
    reading = read_field(gpus, "links", "NVLinks")
    up = {gpu.key: sum(links) for gpu, links in reading.values}
    most = {key: max(count, _most_before(host.counter_history, key)) for key, count in up.items()}
    yield Fact("links_up", {gpu.device: up[gpu.key] for gpu, _ in reading.values})
    yield SaveCounters(most)
    switched = has_nvswitches(host, gpus)
    if not switched and not thresholds.expected and not any(most.values()):
        reading.raise_if_incomplete()
        raise NotApplicable("no NVLink of any GPU is connected, and there is no NVSwitch")
    if switched and thresholds.expected is None and _is_a_part(host, reading.values, up):
        yield Fact("part_of_a_switched_board", {"links_up": next(iter(up.values())), "gpus": len(up)})
        reading.raise_if_incomplete()
        return
    for gpu, links in reading.values:
        expected = _expected(gpu, reading.values, thresholds.expected, switched, up, most)
        if up[gpu.key] < expected.links:
            yield _finding(gpu, up[gpu.key], expected, [link for link, is_up in enumerate(links) if not is_up])
    reading.raise_if_incomplete()


def _most_before(history: CounterHistory, key: str) -> int:
    """The most links that the GPU had up since boot, as far as snapshots tell."""
    return history.snapshots[-1].counters.get(key, 0) if history.snapshots else 0


def _is_a_part(host: Host, readings: _Readings, up: Mapping[str, int]) -> bool:
    """Returns whether this may be a guest with a part of a board: its fabric manager gives each GPU of a partition the
    same number of links, and none where the partition has one GPU."""
    counts = {up[gpu.key] for gpu, _ in readings}
    below = any(up[gpu.key] < len(links) for gpu, links in readings)
    return below and len(counts) == 1 and is_virtual_machine(host) is not False


def _expected(
    gpu: Gpu,
    readings: _Readings,
    profile: int | None,
    switched: bool,
    up: Mapping[str, int],
    most: Mapping[str, int],
) -> _Expected:
    if profile is not None:
        return _Expected(profile, "profile")
    if switched:
        return _Expected(max(len(links) for other, links in readings if other is gpu), "board")
    if most[gpu.key] > up[gpu.key]:
        return _Expected(most[gpu.key], "earlier in this boot")
    bridged = [up[other.key] for other, _ in readings if other.name == gpu.name and up[other.key]]
    if not up[gpu.key] or not bridged:
        return _Expected(0, "no bridge")
    common = majority(bridged)
    return _Expected(common or max(bridged), "peers" if common else "best peer", Severity.WARNING)


def _finding(gpu: Gpu, up: int, expected: _Expected, down: list[int]) -> Finding:
    return finding(
        "NVLINK_DOWN",
        gpu.device,
        f"{up} of {expected.links} NVLinks are up",
        evidence={"up": up, "expected": expected.links, "expected_from": expected.source, "links_down": down},
        fix=_FIX,
        commands=(f"nvidia-smi nvlink -s -i {gpu.index}", "dmesg -T | grep -E 'Xid|SXid'"),
        severity=expected.severity,
    )


PROBE: Final = Probe("nvlink", check, NvlinkThresholds(), group=GPU)
