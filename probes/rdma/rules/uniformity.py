"""RDMA_FIRMWARE_MIXED and NIC_MIXED: are the RDMA devices of a machine alike?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import finding
from laggard.probes.rdma.model.fabric import nearest
from laggard.probes.rdma.model.port import RDMA
from laggard.probes.rdma.model.sysfs import gpu_paths, optional, read_ports


def judge_firmware(host: Host, names: list[str], complaints: list[str]) -> Iterator[Finding]:
    boards: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        try:
            kind = optional(host, f"{RDMA}/{name}/board_id"), optional(host, f"{RDMA}/{name}/hca_type")
            firmware = optional(host, f"{RDMA}/{name}/fw_ver")
        except Unknown as error:
            complaints.append(str(error))
            continue
        if firmware:
            boards.setdefault(kind, {})[name] = firmware
    for (board, _), versions in boards.items():
        if len(set(versions.values())) > 1:
            usual = Counter(versions.values()).most_common(1)[0][0]
            odd = sorted(name for name, version in versions.items() if version != usual)
            yield finding(
                "RDMA_FIRMWARE_MIXED",
                odd[0],
                f"runs firmware {versions[odd[0]]}, others of its board {usual}"
                + (f" ({len(odd)} differ)" if len(odd) > 1 else ""),
                evidence={"board": board, "versions": versions},
                fix=f"Bring all NICs of the board to one version, best {max(versions.values(), key=_version)}.",
                commands=(f"mlxfwmanager --query -d {odd[0]}", "mlxfwmanager --online -u"),
            )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def judge_mixture(host: Host, ignore: tuple[str, ...]) -> Iterator[Finding]:
    """Every GPU should find one kind of NIC at its side; a GPU may have others there too, for storage."""
    try:
        ports = read_ports(host, ignore).ports
    except (NotApplicable, Unknown):  # said elsewhere
        return
    paths = {path[-1]: path for path in gpu_paths(host)}
    beside = {gpu: nearest(path, ports) for gpu, path in paths.items()}
    kinds = {gpu: {(port.kind.type, port.kind.link_layer) for port in near} for gpu, near in beside.items() if near}
    if len(kinds) < 2 or set.intersection(*kinds.values()):
        return
    best = Counter(kind for those in kinds.values() for kind in those).most_common(1)[0][0]
    odd = {gpu: near for gpu, near in beside.items() if near and best not in kinds[gpu]}
    gpu, near = next(iter(odd.items()))
    yield finding(
        "NIC_MIXED",
        near[0].device,
        f"({near[0].kind.type}, {near[0].kind.link_layer}) is beside GPU {gpu}; most have {best[0]}, {best[1]}",
        evidence={"nics_by_gpu": {gpu: [port.name for port in near] for gpu, near in beside.items()}, "usual": best},
        fix="Give all GPUs of a machine NICs of one kind, or leave the odd ones out with NCCL_IB_HCA.",
        commands=("nvidia-smi topo -m", "rdma link"),
    )
