"""GPU_CLOCKS_LOW, GPU_MIXED and GPU_PERSISTENCE_OFF: a GPU that is held, or set, to be slower than it could be, or set
unlike its peers.

A setting below the board's own default is somebody's: of who locked application clocks or lowered the power limit, for
a benchmark or on purpose. It is a warning for all GPUs. Of few it is critical by what it costs: most peers are so much
faster that they wait for it (rows.py). A limit that something beside the driver enforces (the BMC, the rack, the board
itself) is a warning, too, since the site may cap the GPUs of one job. It is critical where the cap lowers the clocks of
a GPU at work now, and most of its peers, at work as well, run faster.
(NVML does not report clocks locked with `nvidia-smi -lgc`; those show as lower speed under load.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

import msgspec

from laggard.kit.majority import grouped, majority, with_peers
from laggard.model import Finding, Severity
from laggard.probes.gpu.model.readings import gpu_peers, is_slower, peer_key, query_gpus, query_nvml, read_field
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import UNSUPPORTED, Gpu
from laggard.probes.probe import GPU, Fact, Probe, Ratio, Thresholds, say
from laggard.probes.rows import SLOWER, holds_back

_MIN_PEERS: Final = 3
_POWER_CAP: Final = 0x04  # nvmlClocksEventReasonSwPowerCap


class _Setting(msgspec.Struct, frozen=True):
    field: str
    default: str  # the field with the board's own value
    description: str
    unit: str
    command: str


_REQUESTED: Final = (
    _Setting("application_sm_mhz", "default_sm_mhz", "application clock", "MHz", "nvidia-smi -rac -i {}"),
    _Setting("application_memory_mhz", "max_memory_mhz", "application memory clock", "MHz", "nvidia-smi -rac -i {}"),
    _Setting(
        "power_limit_watts", "default_power_limit_watts", "power limit", "W", "nvidia-smi -i {} -pl DEFAULT_WATTS"
    ),
)
_HIGHEST: Final = (
    _Setting("max_sm_mhz", "", "highest SM clock", "MHz", "nvidia-smi --reset-gpu-clocks -i {}"),
    _Setting("max_memory_mhz", "", "highest memory clock", "MHz", "nvidia-smi --reset-memory-clocks -i {}"),
)
_ENFORCED: Final = _Setting(
    "enforced_power_limit_watts", "power_limit_watts", "enforced power limit", "W", "nvidia-smi -q -d POWER -i {}"
)


_BANDWIDTH_MODES: Final = {1: "nothing", 2: "the least", 3: "half", 4: "three quarters"}  # NVML_GPU_NVLINK_BW_MODE_*


class ClocksThresholds(Thresholds, frozen=True):
    tolerance_ratio: Ratio = 0.02
    """The share by which a clock may be lower than it should be and still count as the same: boards of one kind differ
    by a clock step (15 MHz) at most."""

    slower_ratio: Ratio = SLOWER
    """The share of most peers' pace below which one GPU's setting is critical; 0: it is a warning."""


def check(host: Host, thresholds: ClocksThresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "max_sm_mhz", "clocks")
    least = 1 - thresholds.tolerance_ratio
    for alike in grouped(gpus, peer_key).values():
        for setting in _REQUESTED:
            yield from _judge_requested(alike, setting, least, thresholds.slower_ratio)
    for peers in gpu_peers(gpus):
        for board in grouped(peers, _board).values():
            for setting in _HIGHEST:
                yield from _judge_highest(board, setting, least)
            yield from _judge_modes(board)
        yield from _judge_enforced(peers, least)
    if mode := query_nvml(host).nvlink_bandwidth_mode:
        yield say("gpu", "bandwidth_mode", "GPUs", {"mode": mode}, share=_BANDWIDTH_MODES.get(mode, "a part"))
    reading.raise_if_incomplete()


def _board(gpu: Gpu) -> Hashable:
    """The same for GPUs whose highest clocks are the same. Boards of one name differ: the cards of two makers, and A100
    of 400 and of 500 W."""
    return gpu.name, gpu.board_part, gpu.vbios, gpu.default_power_limit_watts


def _judge_highest(gpus: Sequence[Gpu], setting: _Setting, least: float) -> Iterator[Finding]:
    """Compares GPUs of one board with their majority. Where part number and firmware are not known, the boards may
    differ: a warning."""
    known = [(gpu, value) for gpu in gpus if (value := getattr(gpu, setting.field))]
    peers = majority((value for _, value in known), _MIN_PEERS)
    for gpu, value in known:
        if peers and value < peers * least:
            severity = Severity.CRITICAL if gpu.board_part and gpu.vbios else Severity.WARNING
            yield _finding("highest", gpu, setting, value, peers, severity)


def _judge_modes(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Finds the GPUs that do not have what most of their board have: a mode is switched off. Errors of a memory
    without ECC change results unseen; the others are a warning."""
    has = {field: [gpu.errors.get(field) != UNSUPPORTED for gpu in gpus] for gpu in gpus for field in gpu.errors}
    usual = [field for field, told in has.items() if majority(told, _MIN_PEERS)]
    for gpu in gpus:
        if lacks := sorted(field for field in usual if gpu.errors.get(field) == UNSUPPORTED):
            kind = "ecc_off" if "ecc_volatile" in lacks else "mode_off"
            yield say("gpu", kind, gpu.device, {"not_supported": lacks}, index=gpu.index, fields=", ".join(lacks))


def _judge_requested(gpus: Sequence[Gpu], setting: _Setting, least: float, slower: float) -> Iterator[Finding]:
    """The pace follows the third root of a limit in watts: a chip's power is its clock times the square of a voltage
    that rises with the clock."""
    values, power = [getattr(gpu, setting.field) or 0 for gpu in gpus], 1 / 3 if setting.unit == "W" else 1
    paces = [value**power for value in values if value]
    for gpu, value in zip(gpus, values, strict=True):
        default = getattr(gpu, setting.default)
        if value and default and value < default * least:
            severity = Severity.CRITICAL if holds_back(value**power, paces, slower) else None
            yield _finding("requested", gpu, setting, value, default, severity)


def _judge_enforced(gpus: Sequence[Gpu], least: float) -> Iterator[Finding]:
    """Compares what is enforced with what the driver was asked for. The clocks of peers at work are the second witness
    of what it costs; where half of them are held back it is the site's power budget."""
    for gpu in gpus:
        enforced, asked = gpu.enforced_power_limit_watts, gpu.power_limit_watts
        if enforced and asked and enforced < asked * least:
            costs = (gpu.clocks_event_reasons or 0) & _POWER_CAP and is_slower(gpu, gpus)
            severity = Severity.CRITICAL if costs else Severity.WARNING
            yield _finding("enforced", gpu, _ENFORCED, enforced, asked, severity)


def _finding(
    kind: str, gpu: Gpu, setting: _Setting, value: float, expected: float, severity: Severity | None = None
) -> Finding:
    evidence = {"setting": setting.field, "value": value, "expected": expected, "expected_from": kind}
    told = {"name": setting.description, "unit": setting.unit, "value": f"{value:g}", "expected": f"{expected:g}"}
    command = setting.command.format(gpu.index)
    return say("gpu", kind, gpu.device, evidence, severity, index=gpu.index, command=command, **told)


# GPU_PERSISTENCE_OFF: the driver shuts down a GPU that no process uses, and starts it anew for each job.


def check_persistence(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    reading = read_field(with_peers(query_gpus(host), peer_key), "persistence", "persistence mode")
    for gpu in (gpu for gpu, on in reading.values if not on):
        yield say("gpu", "persistence", gpu.device, {})
    reading.raise_if_incomplete()


PROBES: Final = (
    Probe("gpu_clocks", check, ClocksThresholds(), group=GPU),
    Probe("gpu_persistence", check_persistence, Thresholds(), group=GPU),
)
