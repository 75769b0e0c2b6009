"""P2P_DISABLED: GPUs that should reach each other's memory and may not.

Where all are on NVSwitches, each reaches each. Without them it depends on the board and on the way between them, and
what was never possible is no fault; but what the registry key has switched off, somebody switched off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.readings import ask_nvml, ask_whole_gpus, explain
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvlink.links import is_switched
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_STATUS: Final = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the way through the I/O hub does not support it",
    4: "switched off by a registry key of the driver",
    5: "not supported",
    6: "unknown to the driver",
}
_BY_KEY: Final = 4
_FIX: Final = {
    False: "Restart the fabric manager when the GPUs are idle and reset all GPUs together; see FABRIC_NOT_READY.",
    True: "Remove the key from the driver's options (NVreg_RegistryDwords in /etc/modprobe.d) and reload the driver.",
}

Pairs = dict[int, list[tuple[Gpu, Gpu, str]]]
"""By status: from, to, and what is refused (read or write)."""


class P2pThresholds(Thresholds, frozen=True):
    """Nothing to set."""


def check(host: Host, thresholds: P2pThresholds) -> Iterator[Finding | Fact]:
    gpus = ask_whole_gpus(host)
    nvml = ask_nvml(host)
    if len(gpus) < 2:
        raise NotApplicable("there is one GPU, and so no peer")
    matrices = {"read": nvml.p2p_read, "write": nvml.p2p_write}
    if any(len(matrix) != len(nvml.gpus) for matrix in matrices.values()):
        raise Unknown("NVML gave no peer-to-peer status")
    refused, silent = _refused(gpus, matrices)
    switched = is_switched(host, gpus)
    judged = {status: pairs for status, pairs in refused.items() if switched or status == _BY_KEY}
    yield Fact("pairs_without_peer_to_peer", sum(len(pairs) for pairs in refused.values()))
    for status, pairs in sorted(judged.items()):
        yield _finding(status, pairs, switched)
    if silent:
        raise Unknown(f"peer-to-peer status of {silent} pairs: {explain(nvml.p2p_error or 'was not read')}")


def _refused(gpus: Sequence[Gpu], matrices: dict[str, tuple[tuple[int | None, ...], ...]]) -> tuple[Pairs, int]:
    refused: Pairs = {}
    silent = 0
    for what, matrix in matrices.items():
        for source in gpus:
            for target in gpus:
                if source is target:
                    continue
                status = matrix[source.index][target.index]
                if status is None:
                    silent += 1
                elif status:
                    refused.setdefault(status, []).append((source, target, what))
    return refused, silent


def _finding(status: int, pairs: list[tuple[Gpu, Gpu, str]], switched: bool) -> Finding:
    """One for each reason; the GPU that most pairs have in common is named."""
    ends = [gpu for source, target, _ in pairs for gpu in (source, target)]
    most = max(ends, key=ends.count)
    alone = all(most in pair[:2] for pair in pairs)
    return finding(
        "P2P_DISABLED",
        most.device if alone else "GPUs",
        f"peer-to-peer refused for {len(pairs)} directed pairs: {_STATUS.get(status, f'status {status}')}",
        evidence={
            "status": status,
            "nvswitches": switched,
            "pairs": [f"{source.index}->{target.index} {what}" for source, target, what in pairs[:56]],
        },
        fix=_FIX[status == _BY_KEY],
        commands=("nvidia-smi topo -p2p r", "nvidia-smi topo -p2p w", "cat /proc/driver/nvidia/params"),
        severity=Severity.CRITICAL if switched else Severity.WARNING,
    )


PROBE: Final = Probe("gpu_p2p", check, P2pThresholds(), group=GPU)
