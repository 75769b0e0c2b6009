"""Finds out which probe raises which code, by running one probe at a time on recorded machines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from laggard.catalogue.findings import all_types
from laggard.probes.probe import Probe
from laggard.probes.registry import PROBES
from support.judge import judge, probes_of
from support.materialise import expectation, names
from support.nccl_logs import LOG_CODES

FACTS_ONLY: Final = frozenset({"identity", "inventory"})
"""Probes that judge nothing."""

ELSEWHERE: Final = {
    "FLEET_OUTLIER": "the collector",
    "HOOK_BLIND": "the agent",
    **{code: "`laggard diagnose` (NCCL logs)" for code in LOG_CODES},
    "DEEPSPEED_CONFIG": "`laggard diagnose` (DeepSpeed's configuration)",
    **{code: "`laggard diagnose` (tuner tables)" for code in ("NCCL_TUNER_ONE_CHANNEL", "NCCL_TUNER_TABLE")},
    "RANK_LATE": "`laggard diagnose` (NCCL Inspector's logs, TraceML's summary)",
    "STEP_TIME_LOST": "`laggard diagnose` (TraceML's summary)",
    **{code: "`laggard diagnose` (tools of GPUs)" for code in ("GPU_DIAG_FAILED",)},
    "NETWORK_DROPS": "`laggard diagnose` (pastes)",
    "JOB_STALE_LOCK": "`laggard diagnose` (listings of torch_extensions, stacks)",
    "NODE_DRAINED": "`laggard diagnose` (Slurm's nodes)",
    "POD_NOT_STARTED": "`laggard diagnose` (Kubernetes' pods and events)",
    "TEST_MEASURED_NOTHING": "`laggard diagnose` (nccl-tests)",
    **{kind.code: "`laggard diagnose` (job logs)" for kind in all_types() if kind.code.startswith("JOB_")},
    **{code: "active probes" for code in ("GPU_SLOW", "GPU_MEMORY_SLOW", "GPU_WRONG_RESULT")},
}
"""Codes that no recorded machine can show, and who raises them: a fleet has several machines, an active probe needs a
GPU, and hooks need a job."""

_CHEAP: Final = ("plain", "one_nic")


def raised_by_probes() -> list[str]:
    """The codes that probes raise on a machine; ELSEWHERE has the others."""
    return [kind.code for kind in all_types() if kind.code not in ELSEWHERE]


def firing(code: str) -> list[str]:
    """Machines that are expected to show `code`: first those on which it is critical, then those that show it alone and
    are quick to make."""
    shown = {name: {row[0] for row in expectation(name)["findings"]} for name in names()}
    critical = {name for name in shown if any(row[:2] == [code, "critical"] for row in expectation(name)["findings"])}
    found = [name for name in shown if code in shown[name]]

    def place(name: str) -> tuple[bool, int, bool, str]:
        return name not in critical, len(shown[name]), expectation(name).get("base") not in _CHEAP, name

    return sorted(found, key=place)


def look_alikes(code: str) -> list[str]:
    """Healthy machines that come close to the fault `code`."""
    return [name for name in names() if code in expectation(name).get("near", ())]


def probes_raising(code: str, machine: Callable[[str], Path]) -> list[str]:
    """The probes that raise `code` on the first machine that shows it."""
    name = firing(code)[0]
    return [probe.name for probe in probes_of(name) if code in found_codes(name, [probe], machine)]


def found_codes(name: str, probes: Sequence[Probe], machine: Callable[[str], Path]) -> set[str]:
    """The codes that `probes` find on the machine `name`."""
    return {finding.code for finding in judge(machine(name), probes).findings}


def judging_probes() -> list[str]:
    """The names of the probes that can raise a code on a recorded machine, which has one reading of each counter."""
    return [probe.name for probe in PROBES if probe.name not in (*FACTS_ONLY, "pcie_replays")]


def critical_codes() -> list[str]:
    """The codes that are critical on some recorded machine."""
    return [code for code in raised_by_probes() if taken(code)]


def taken(code: str) -> list[str]:
    return [name for name in names() if _is_critical(name, code)]


def staying(code: str) -> list[str]:
    """The machines that look like the fault `code` and are not taken for it: with a warning, or without a finding."""
    warned = [name for name in names() if "warning" in _severities(name, code) and not _is_critical(name, code)]
    return [*warned, *look_alikes(code)]


def _is_critical(name: str, code: str) -> bool:
    return "critical" in _severities(name, code)


def _severities(name: str, code: str) -> set[str]:
    return {severity for found, severity, _ in expectation(name)["findings"] if found == code}
