"""NVLINK_DOWN: a GPU with fewer NVLinks up than its board has, than it had since boot, or than its peers have up.

With NVSwitches every link of a board ends in one: fewer are a fault. Without them bridges connect some GPUs and use
some of their links: a GPU without any link up has no bridge, and one with fewer than its peers may have a smaller one.

Of AMD's GPUs the XGMI links are judged, by the same measures, where the firmware tells their state (gpu_metrics 1.7 and
newer). A board does not use all that its GPUs have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from laggard.kit.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.amd_gpus import raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import has_nvswitches, query_non_mig_gpus, read_field
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.probe import GPU, Count, Fact, Probe, Thresholds, say

_MIN_PEERS: Final = 3


class NvlinkThresholds(Thresholds, frozen=True):
    expected: Count | None = None
    """NVLinks that are up on each GPU of this kind of node. Not set: with NVSwitches all of the board's, else as many
    as the GPU had since boot, and as most GPUs of this node have that have any."""


class _Links(msgspec.Struct, frozen=True):
    """The links of one GPU. GPUs of one `model` are peers. `most`: the most that were up since boot."""

    key: str
    device: str
    model: object
    states: tuple[bool, ...]
    most: int

    @property
    def up(self) -> int:
        return sum(self.states)


class _Expected(msgspec.Struct, frozen=True):
    """The number of links that should be up, and by which measure."""

    links: int
    source: str
    severity: Severity = Severity.CRITICAL


def _links(host: Host, key: str, device: str, model: object, states: Iterable[int | None]) -> _Links:
    """`most` as far as snapshots tell."""
    snapshots, known = host.counter_history.snapshots, tuple(map(bool, states))
    return _Links(key, device, model, known, max(sum(known), snapshots[-1].counters.get(key, 0) if snapshots else 0))


def _seen(gpus: Sequence[_Links]) -> Iterator[Fact | SaveCounters]:
    yield Fact("links_up", {gpu.device: gpu.up for gpu in gpus})
    yield SaveCounters({gpu.key: gpu.most for gpu in gpus})


def _check_amd(host: Host, thresholds: NvlinkThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    started = started_amd_gpus(host)
    gpus = [
        _links(host, gpu.address, gpu.device, gpu.device_id, gpu.metrics.xgmi_links)
        for gpu in started
        if gpu.metrics and any(state is not None for state in gpu.metrics.xgmi_links)
    ]
    yield from _seen(gpus)
    for gpu in gpus:
        common = majority((peer.up for peer in gpus if peer.model == gpu.model), _MIN_PEERS) or 0
        if thresholds.expected is not None:
            expected = _Expected(thresholds.expected, "profile")
        elif gpu.most > common:
            expected = _Expected(gpu.most, "earlier in this boot")
        else:
            expected = _Expected(common, "peers", Severity.WARNING)
        yield from _judge("xgmi_down", gpu, expected, {})
    raise_if_unread(started, "metrics", "a table of metrics (gpu_metrics)")
    if not gpus:
        raise NotApplicable("gpu_metrics of these GPUs does not tell which XGMI links are up (it does from 1.7 on)")


def _check_nvidia(host: Host, thresholds: NvlinkThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    listed = query_non_mig_gpus(host)
    reading = read_field(listed, "links", "NVLinks")
    gpus = [_links(host, gpu.key, gpu.device, gpu.name, states) for gpu, states in reading.values]
    yield from _seen(gpus)
    switched = has_nvswitches(host, listed)
    if not switched and not thresholds.expected and not any(gpu.most for gpu in gpus):
        reading.raise_if_incomplete()
        raise NotApplicable("no NVLink of any GPU is connected, and there is no NVSwitch")
    if switched and thresholds.expected is None and _is_a_part(host, gpus):
        yield Fact("part_of_a_switched_board", {"links_up": gpus[0].up, "gpus": len(gpus)})
        reading.raise_if_incomplete()
        return
    for gpu, (listed_gpu, states) in zip(gpus, reading.values, strict=True):
        down = [link for link, is_up in enumerate(states) if not is_up]
        expected = _expected(gpu, gpus, thresholds.expected, switched)
        yield from _judge("nvlinks_down", gpu, expected, {"links_down": down}, listed_gpu.index)
    reading.raise_if_incomplete()


def _is_a_part(host: Host, gpus: Sequence[_Links]) -> bool:
    """Returns whether this may be a guest with a part of a board: its fabric manager gives each GPU of a partition the
    same number of links, and none where the partition has one GPU."""
    below = any(gpu.up < len(gpu.states) for gpu in gpus)
    return below and len({gpu.up for gpu in gpus}) == 1 and is_virtual_machine(host) is not False


def _expected(gpu: _Links, gpus: Sequence[_Links], profile: int | None, switched: bool) -> _Expected:
    if profile is not None:
        return _Expected(profile, "profile")
    if switched:
        return _Expected(len(gpu.states), "board")
    if gpu.most > gpu.up:
        return _Expected(gpu.most, "earlier in this boot")
    bridged = [peer.up for peer in gpus if peer.model == gpu.model and peer.up]
    if not gpu.up or not bridged:
        return _Expected(0, "no bridge")
    common = majority(bridged)
    return _Expected(common or max(bridged), "peers" if common else "best peer", Severity.WARNING)


def _judge(
    kind: str, gpu: _Links, expected: _Expected, more: Mapping[str, object], index: int = 0
) -> Iterator[Finding]:
    if gpu.up < expected.links:
        evidence = {"up": gpu.up, "expected": expected.links, "expected_from": expected.source, **more}
        named = {"up": gpu.up, "expected": expected.links, "index": index}
        yield say("gpu", kind, gpu.device, evidence, expected.severity, **named)


PROBE: Final = Probe("nvlink", of_each_maker(_check_nvidia, _check_amd), NvlinkThresholds(), group=GPU)
