"""Which probe raises which code, shown by the machines: each is looked at by one probe at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from laggard.catalogue.findings import FINDINGS
from laggard.probes.probe import Probe
from laggard.probes.registry import PROBES
from support.judge import judge, probes_of
from support.materialise import expectation, names

FACTS_ALONE: Final = frozenset({"identity", "inventory"})
"""Probes that judge nothing."""

ELSEWHERE: Final = {
    "FLEET_OUTLIER": "the collector",
    "HOOK_BLIND": "the agent",
    **{
        code: "`laggard diagnose` (NCCL logs)"
        for code in ("TCP_FALLBACK", "GPUDIRECT_OFF", "SHM_INSTEAD_OF_P2P", "NCCL_VERSION_MIXED")
    },
    **{code: "active probes" for code in ("GPU_SLOW", "GPU_MEMORY_SLOW", "GPU_WRONG_RESULT")},
}
"""Codes that no recorded machine can show: a fleet has several machines, an active probe needs a GPU, and hooks a
job."""

_CHEAP: Final = ("plain", "one_nic")


def raised_by_probes() -> list[str]:
    return [kind.code for kind in FINDINGS if not kind.later and kind.code not in ELSEWHERE]


def firing(code: str) -> list[str]:
    """Machines that are expected to show this code: first those that show it alone and are quick to make."""
    shown = {name: {row[0] for row in expectation(name)["findings"]} for name in names()}
    found = [name for name in shown if code in shown[name]]
    return sorted(found, key=lambda name: (len(shown[name]), expectation(name).get("base") not in _CHEAP, name))


def near(code: str) -> list[str]:
    """Machines that come close to this fault and have not got it."""
    return [name for name in names() if code in expectation(name).get("near", ())]


def raisers(code: str, machine: Callable[[str], Path]) -> list[str]:
    """The probes that raise `code` on the first machine that shows it."""
    name = firing(code)[0]
    return [probe.name for probe in probes_of(name) if code in codes(name, [probe], machine)]


def codes(name: str, probes: Sequence[Probe], machine: Callable[[str], Path]) -> set[str]:
    """What these probes find on the machine."""
    return {finding.code for finding in judge(machine(name), probes).findings}


def judging_probes() -> list[str]:
    return [probe.name for probe in PROBES if probe.name not in FACTS_ALONE]
