"""NVLINK_DOWN: a GPU with fewer NVLinks up than its board has, or its peers have up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.majority import majority
from laggard.model import Finding
from laggard.probes.errors import NotApplicable
from laggard.probes.gpu.model.readings import has_nvswitches, query_non_mig_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Count, Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Look for Xid 74 or 144 to 150 in the kernel's log and restart the fabric manager; reset all GPUs together. If the "
    "same links stay down, have the board (or the bridge) reseated or replaced."
)


class NvlinkThresholds(Thresholds, frozen=True):
    expected: Count | None = None
    """NVLinks that are up on each GPU of this kind of node. Not set: with NVSwitches all of the board's, else as many
    as most GPUs of this node have."""


def check(host: Host, thresholds: NvlinkThresholds) -> Iterator[Finding | Fact]:
    gpus = query_non_mig_gpus(host)
    reading = read_field(gpus, "links", "NVLinks")
    up = {gpu.key: sum(links) for gpu, links in reading.values}
    yield Fact("links_up", {gpu.device: up[gpu.key] for gpu, _ in reading.values})
    switched = has_nvswitches(host, gpus)
    if not switched and not thresholds.expected and not any(up.values()):
        reading.raise_if_incomplete()
        raise NotApplicable("no NVLink of any GPU is connected, and there is no NVSwitch")
    for gpu, links in reading.values:
        same_model = [up[other.key] for other, _ in reading.values if other.name == gpu.name]
        expected, source = _expected(thresholds.expected, len(links) if switched else 0, same_model)
        if up[gpu.key] < expected:
            down = [link for link, is_up in enumerate(links) if not is_up]
            yield _finding(gpu, up[gpu.key], expected, source, down)
    reading.raise_if_incomplete()


def _expected(profile: int | None, board: int, same_model: list[int]) -> tuple[int, str]:
    """Returns how many links should be up, and by which measure. With NVSwitches every link of the board ends in one
    (`board` is 0 without them); a bridge uses some of the links, and the peers show how many."""
    if profile is not None:
        return profile, "profile"
    if board:
        return board, "board"
    common = majority(same_model)
    return (common, "peers") if common is not None else (max(same_model), "best peer")


def _finding(gpu: Gpu, up: int, expected: int, source: str, down: list[int]) -> Finding:
    return finding(
        "NVLINK_DOWN",
        gpu.device,
        f"{up} of {expected} NVLinks are up",
        evidence={"up": up, "expected": expected, "expected_from": source, "links_down": down},
        fix=_FIX,
        commands=(f"nvidia-smi nvlink -s -i {gpu.index}", "dmesg -T | grep -E 'Xid|SXid'"),
    )


PROBE: Final = Probe("nvlink", check, NvlinkThresholds(), group=GPU)
