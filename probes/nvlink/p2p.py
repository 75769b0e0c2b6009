"""P2P_DISABLED: GPUs that should reach each other's memory and may not.

With NVSwitches every pair of GPUs should. Without them it depends on the board and on the path between the two GPUs,
and a pair that never could is no fault; but peer-to-peer that a registry key switched off was switched off by somebody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.readings import gpu_peers, has_nvlinks, has_nvswitches, query_non_mig_gpus, query_nvml
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu, explain_nvml_error
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, say
from laggard.probes.tables import meanings

_BY_KEY: Final = 4

Pairs = dict[int, list[tuple[Gpu, Gpu, str]]]
"""The pairs by status (NVML_P2P_STATUS_*): source, target, and what is refused (read or write)."""


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    gpus = query_non_mig_gpus(host)
    nvml = query_nvml(host)
    if len(gpus) < 2:
        raise NotApplicable("there is one GPU, and so no peer")
    matrices = {"read": nvml.p2p_read, "write": nvml.p2p_write}
    if any(len(matrix) != len(nvml.gpus) for matrix in matrices.values()):
        raise Unknown("NVML gave no peer-to-peer status")
    without = not_read = 0
    for peers in gpu_peers(gpus):
        refused, unreadable = _refused(peers, matrices)
        switched = has_nvlinks(peers[0]) and has_nvswitches(host, gpus)
        judged = {status: pairs for status, pairs in refused.items() if switched or status == _BY_KEY}
        count = sum(len(pairs) for pairs in refused.values())
        everywhere = count == 2 * len(peers) * (len(peers) - 1)
        for status, pairs in sorted(judged.items()):
            yield _finding(status, pairs, switched, everywhere or status == _BY_KEY)
        without, not_read = without + count, not_read + unreadable
    yield Fact("pairs_without_peer_to_peer", without)
    if not_read:
        raise Unknown(
            f"peer-to-peer status of {not_read} pairs: {explain_nvml_error(nvml.p2p_error or 'was not read')}"
        )


def _refused(gpus: Sequence[Gpu], matrices: dict[str, tuple[tuple[int | None, ...], ...]]) -> tuple[Pairs, int]:
    """Returns the refused pairs, and how many pairs have no status. The matrices are by access, rows are sources."""
    refused: Pairs = {}
    unreadable = 0
    for access, matrix in matrices.items():
        for source in gpus:
            for target in gpus:
                if source is target:
                    continue
                status = matrix[source.index][target.index]
                if status is None:
                    unreadable += 1
                elif status:
                    refused.setdefault(status, []).append((source, target, access))
    return refused, unreadable


def _finding(status: int, pairs: list[tuple[Gpu, Gpu, str]], switched: bool, set_so: bool) -> Finding:
    """Makes one finding for all pairs with one status. It names the GPU that all pairs have in common, if any.
    `set_so`: all pairs are refused, or a key refuses them: a setting, of this machine or of the fleet, and a warning.
    Where the fabric is down, the probe fabric says so."""
    ends = [gpu for source, target, _ in pairs for gpu in (source, target)]
    most = max(ends, key=ends.count)
    alone = all(most in pair[:2] for pair in pairs)
    severity = Severity.CRITICAL if switched and not set_so else Severity.WARNING
    evidence = {"pairs": [f"{source.index}->{target.index} {access}" for source, target, access in pairs[:56]]}
    said, _ = meanings("nvml", "p2p").get(str(status), (f"status {status}", severity))
    named = {"count": len(pairs), "status": said}
    kind = "p2p_by_key" if status == _BY_KEY else "p2p"
    return say("gpu", kind, most.device if alone else "GPUs", evidence, severity, **named)


PROBE: Final = Probe("gpu_p2p", check, Thresholds(), group=GPU)
