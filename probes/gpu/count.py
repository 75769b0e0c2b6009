"""GPU_MISSING: fewer GPUs answer than the machine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.gpu.model.pci_devices import Bus, look_at_bus
from laggard.probes.gpu.model.readings import ask_nvml, explain
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Nvml
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX: Final = (
    "Look for the GPU in the kernel's log (`NVRM: GPU ... has fallen off the bus`, `RmInitAdapter failed`) and on the "
    "bus. Power the node off and on (not a mere reboot); if it stays away, reseat or replace it."
)


class CountThresholds(Thresholds, frozen=True):
    expected: int | None = None
    """GPUs of this kind of node. Not set: as many as the PCI tree shows."""


def check(host: Host, thresholds: CountThresholds) -> Iterator[Finding | Fact]:
    """The profile's number counts also on a machine whose PCI tree shows no GPU at all."""
    bus = look_at_bus(host)
    expected = len(bus.gpus) if thresholds.expected is None else thresholds.expected
    if thresholds.expected is not None and not bus.gpus:
        if expected:
            yield _missing(bus, expected, (), "the PCI tree shows none")
        return
    nvml = ask_nvml(host)
    if nvml.error or nvml.hung:
        raise Unknown(f"{len(bus.gpus)} GPUs in the PCI tree, and NVML: {_why(nvml)}")
    yield from _facts(bus, nvml)
    listed = [gpu.bus_id for gpu in nvml.gpus]
    if len(listed) >= expected:
        return
    silent = tuple(name for name in bus.gpus if name not in listed)
    confined = _confined(_environ(host), host)
    if confined and thresholds.expected is None:
        raise Unknown(f"NVML lists {len(listed)} of {expected} GPUs, and {confined}")
    yield _missing(bus, expected, silent, f"NVML lists {len(listed)}", listed=len(listed))


def _missing(bus: Bus, expected: int, silent: tuple[str, ...], how: str, listed: int = 0) -> Finding:
    count = expected - listed
    return finding(
        "GPU_MISSING",
        f"GPU {', '.join(silent)}" if silent else "GPUs",
        f"{count} of {expected} GPUs {'is' if count == 1 else 'are'} missing: {how}",
        evidence={
            "expected": expected,
            "in_nvml": listed,
            "in_pci_tree": len(bus.gpus),
            "in_pci_tree_but_not_nvml": list(silent),
        },
        fix=_FIX,
        commands=("nvidia-smi -L", "lspci -d 10de: -nn", "dmesg -T | grep -E 'NVRM|pcieport'"),
    )


def _facts(bus: Bus, nvml: Nvml) -> Iterator[Fact]:
    """What else is there, recognised and not judged."""
    yield Fact("models", sorted({gpu.name for gpu in nvml.gpus if gpu.name}))
    yield Fact("nvswitches", len(bus.switches))
    minors = {str(gpu.minor): gpu.bus_id for gpu in nvml.gpus if gpu.minor is not None and gpu.bus_id}
    yield Fact("minors", minors)  # how SLURM counts GPUs
    others = {
        "mig": [gpu.index for gpu in nvml.gpus if gpu.mig],
        "lent_to_virtual_machines": list(bus.lent),
        "amd_gpus": bus.amd,
    }
    for name, value in others.items():
        if value:
            yield Fact(name, value)


def _why(nvml: Nvml) -> str:
    return explain(nvml.error) if nvml.error else "hangs"


def _environ(host: Host) -> Mapping[str, str]:
    try:
        return host.environ()
    except NotFound:
        return {}


def _confined(environ: Mapping[str, str], host: Host) -> str:
    """Why this process may be shown only some of the GPUs; NVML leaves out those that a cgroup forbids. A container
    with all GPUs says so; SLURM's prologs and epilogs run outside the job's cgroup."""
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible == "all":
        return ""
    if visible not in ("", "void"):
        return "this container was given only some (NVIDIA_VISIBLE_DEVICES)"
    script = environ.get("SLURM_SCRIPT_CONTEXT", "")
    if "SLURM_JOB_ID" in environ and not script.startswith(("prolog", "epilog")):
        return "this process runs in a SLURM job, which may be given only some"
    for path in ("/.dockerenv", "/run/.containerenv"):
        try:
            host.read_bytes(path)
        except NotFound:
            continue
        return "this process runs in a container, which may be given only some"
    return ""


PROBE: Final = Probe("gpu_count", check, CountThresholds(), group=GPU)
