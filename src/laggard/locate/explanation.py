"""The explanation of a culprit, and the advice about it: findings of its machine that cause this kind of slowness.
Pure.

A finding is shown beside a culprit only where it can be the cause: clocks that disagree slow no forward pass. What all
machines of the job have makes none of them slower than the others, and what another GPU has does not slow this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from laggard.catalogue.findings import known_type
from laggard.catalogue.rules import read_table
from laggard.kit.constants import SCRIPT_PHASES
from laggard.locate.describe import situation
from laggard.locate.job_timings import NOTHING, JobTimings, NodeFindings, Place
from laggard.model import SEVERITIES, Culprit, Fix

_NODES: Final = 4
"""The number of nodes of a ring in pairs: it needs three, and a fourth so that each suspect meets two others."""
_MAX_SUSPECTS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,80}")


def ring_request(culprit: Culprit, nodes: Iterable[str | None]) -> str:
    """Returns what to run to measure the machines of `culprit` against each other and others of the job's `nodes`;
    empty where the job has fewer than three, or a name is none that a shell takes as it is."""
    suspects = list(culprit.machines[:_MAX_SUSPECTS])
    others = sorted({node for node in nodes if node} - set(suspects))
    chosen = [*suspects, *others[: max(2, _NODES - len(suspects))]]
    if not suspects or len(chosen) < 3 or not all(map(_NAME.fullmatch, chosen)):
        return ""
    return (
        "once the job has ended, measure them apart: "
        f"srun -w {','.join(chosen)} -N{len(chosen)} --ntasks-per-node=1 laggard ring --pairs"
    )


_COMPUTING = (
    "GPU_", "NVLINK_", "PCIE_", "FABRIC_", "CPU_", "NUMA_MISMATCH", "HUGE_SWAP", "IOMMU_ENABLED", "FLEET_OUTLIER",
)  # fmt: skip
_READING = (
    "CPU_", "NUMA_MISMATCH", "HUGE_SWAP", "DISK_FULL", "MOUNT_", "PCIE_", "IOMMU_ENABLED", "OPEN_FILES_LIMIT",
    "FLEET_OUTLIER", "BOND_DEGRADED",
)  # fmt: skip
_SENDING = (
    "RDMA_", "NVLINK_", "PCIE_", "FABRIC_", "NCCL_", "RING_", "ACS_ENABLED", "IOMMU_ENABLED", "P2P_DISABLED", "PFC_OFF",
    "ECN_OFF", "NIC_MIXED", "PEERMEM_MISSING", "TCP_FALLBACK", "GPUDIRECT_OFF", "SHM_INSTEAD_OF_P2P", "NUMA_MISMATCH",
    "MEMLOCK_LIMIT", "CPU_AFFINITY", "FLEET_OUTLIER", "BOND_DEGRADED",
)  # fmt: skip
_STOPPING = (
    "GPU_", "NVLINK_", "PCIE_", "FABRIC_", "RDMA_", "NCCL_", "JOB_", "DISK_FULL", "MOUNT_", "MEMLOCK_LIMIT",
    "HUGE_SWAP", "HOST_MEMORY_LOW", "KERNEL_LIMIT_REACHED", "SHM_SMALL", "MODULE_MISSING", "OPEN_FILES_LIMIT", "RING_",
    "PEERMEM_MISSING", "FLEET_OUTLIER", "SERVICE_DOWN", "FILE_MODE_WRONG",
)  # fmt: skip

_CAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "hung": _STOPPING,
    "dead": _STOPPING,
    "corrupt": ("GPU_WRONG_RESULT", "GPU_ECC_", "GPU_ROW_", "GPU_XID"),
    "slow_link": _SENDING,
}
"""The beginnings of the codes of findings that can be the cause, by the kind of the culprit."""
_PASSES = ("forward", "backward")
_BETWEEN = ("between_steps", *SCRIPT_PHASES)
_CAUSES_IN: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("input", *_BETWEEN), _READING),
    **dict.fromkeys((*_PASSES, "optimizer"), _COMPUTING),
}
"""The same of what is slow, by its phase; of another phase, or none, all of them."""

_BUSY = "CPU_BUSY"
_MEASURED_BY_RINGS = ("RING_SLOW", "RING_FAILED")
_OTHER_REASONS = ("slow_link", "hung")
_MAX_FOLLOWED_CULPRITS = 3

_ADVICE: Final[Mapping[str, Fix]] = read_table(Path(__file__).with_name("advice.ini")).advice


def explained(culprit: Culprit, timings: JobTimings) -> Culprit:
    """`culprit`, with the findings that can be its cause, and with what to do first. Findings of its own or of the
    whole machine come before those of a GPU that may be another, and then the gravest first."""
    found = [each for node in culprit.machines for each in _explaining_findings(culprit, node, timings)]
    found.sort(key=lambda each: (each[1] is Place.UNKNOWN, _gravity(each[0])))
    codes = tuple(dict.fromkeys(code for code, _ in found))
    to_do = [culprit.advice or advice(culprit, codes)]
    is_network = culprit.kind == "slow_link" and not culprit.is_within_machine
    if is_network and not any(code in codes for code in _MEASURED_BY_RINGS):
        to_do.append(ring_request(culprit, timings.nodes))
    return structs.replace(culprit, findings=codes, advice="; ".join(filter(None, to_do)))


def _gravity(code: str) -> int:
    """The place of the code's usual severity; one that the catalogue does not have, as a newer agent's, comes last."""
    known = known_type(code)
    return SEVERITIES.index(known.severity) if known else len(SEVERITIES)


def advice(culprit: Culprit, findings: tuple[str, ...] = ()) -> str:
    """The things to look at first: where findings explain the culprit, these. A slow rank that its machine's findings
    explain needs no other search; what hangs or is a link may have more than one reason. What is known of the rank
    itself (its process is stopped, it died, its threads got no CPU) comes before what its machine may have to do with
    it."""
    look = _first_look(culprit)
    if not findings:
        return look
    first, *others = findings[:_MAX_FOLLOWED_CULPRITS]
    then = f"; then {', '.join(others)}" if others else ""
    explain = f"{_meaning(first)} (laggard findings explain {first}){then}"
    if culprit.stopped or culprit.kind in ("dead", "corrupt") or culprit.neighbours:
        return f"{look}; then {first}{explain}"
    return f"follow {first} first{explain}" + (f"; else {look}" if culprit.kind in _OTHER_REASONS else "")


def _meaning(code: str) -> str:
    """`: a GPU ran slower for heat`, the catalogue's sentence; empty where it has none."""
    known = known_type(code)
    if known is None:
        return ""
    text = known.summary.rstrip(".")
    return f": {text if text[1].isupper() or text[1].isdigit() else text[0].lower() + text[1:]}"


def _first_look(culprit: Culprit) -> str:
    kind, phase, where = culprit.kind, culprit.phase, situation(culprit)
    situations = (
        ("in_machine", culprit.is_within_machine),
        ("uneven_passes", kind == "uneven_work" and phase in _PASSES),
        (where, where in _ADVICE and kind != "slow_host"),
        ("between_steps", phase in _BETWEEN),
        ("intermittent", culprit.persistence == "intermittent"),
        ("input", phase == "input"),
        (kind, kind in _ADVICE),
        ("passes" if culprit.gpu else "no_gpu", phase in _PASSES),
    )
    told = next((each for each, holds in situations if holds), phase or "")
    return _ADVICE.get(told, _ADVICE["unknown"]).text


def _explaining_findings(culprit: Culprit, node: str, timings: JobTimings) -> list[tuple[str, Place]]:
    """The codes of the findings on `node` that can be the cause, and where they are, seen from the culprit; not those
    that all other machines have as well. For a machine, and for a link between GPUs or machines, all findings count."""
    is_one_rank = len(culprit.ranks) == 1 and culprit.kind != "slow_link"
    here = timings.findings_by_node.get(node, NOTHING)
    others = [timings.findings_by_node.get(other or "", NOTHING) for other in set(timings.nodes) - {node}]
    causes = _CAUSES.get(culprit.kind) or _CAUSES_IN.get(culprit.phase or "", (*_COMPUTING, *_READING))
    none = _BUSY if culprit.neighbours is None else ""  # of whom it is not known that its threads wait for a CPU
    found = [
        (it, here.place(it, culprit.gpu) if is_one_rank else Place.MACHINE)
        for it in here.codes
        if it.startswith(causes) and it != none
    ]
    return [each for each in found if each[1] is not Place.ELSEWHERE and not _is_shared(*each, others)]


def _is_shared(code: str, place: Place, others: Sequence[NodeFindings]) -> bool:
    """Whether all other machines of the job have it as well: for a finding of the rank's own GPU, all of their GPUs. A
    ring compares the machines itself."""
    if not others or code in _MEASURED_BY_RINGS:
        return False
    return all(each.has_everywhere(code) if place is Place.OWN else code in each.codes for each in others)
