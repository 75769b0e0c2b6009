"""RDMA_FIRMWARE_MIXED and NIC_MIXED: RDMA devices of one machine that differ where they should be alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import finding
from laggard.probes.rdma.model.node_ports import nearest_ports
from laggard.probes.rdma.model.port import RDMA
from laggard.probes.rdma.model.sysfs import gpu_paths, read_if_present, read_ports
from laggard.probes.unreadable import Unreadable


class Firmware(NamedTuple):
    device: str
    board: str
    hca_type: str
    version: str


def read_firmware(host: Host, names: Iterable[str]) -> Iterator[Firmware | Unreadable]:
    """Yields the firmware of each device that reports one."""
    for name in names:
        folder = f"{RDMA}/{name}"
        try:
            board, hca_type, version = (
                read_if_present(host, f"{folder}/{file}") for file in ("board_id", "hca_type", "fw_ver")
            )
        except Unknown as error:
            yield Unreadable(str(error))
            continue
        if version:
            yield Firmware(name, board, hca_type, version)


def judge_firmware(firmware: Iterable[Firmware]) -> Iterator[Finding]:
    """Compares devices of one board and type; one finding for each board with several versions. Pure."""
    boards: dict[tuple[str, str], dict[str, str]] = {}
    for each in firmware:
        boards.setdefault((each.board, each.hca_type), {})[each.device] = each.version
    for (board, _), versions in boards.items():
        if len(set(versions.values())) > 1:
            usual = Counter(versions.values()).most_common(1)[0][0]
            outliers = sorted(name for name, version in versions.items() if version != usual)
            yield finding(
                "RDMA_FIRMWARE_MIXED",
                outliers[0],
                f"runs firmware {versions[outliers[0]]}, others of its board {usual}"
                + (f" ({len(outliers)} differ)" if len(outliers) > 1 else ""),
                evidence={"board": board, "versions": versions},
                fix=f"Bring all NICs of the board to one version, best {max(versions.values(), key=_version)}.",
                commands=(f"mlxfwmanager --query -d {outliers[0]}", "mlxfwmanager --online -u"),
            )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def judge_mixture(host: Host, ignore: tuple[str, ...]) -> Iterator[Finding]:
    """Finds GPUs whose nearest NICs include none of the usual kind. Further NICs, for storage, do not matter."""
    try:
        ports = read_ports(host, ignore).ports
    except (NotApplicable, Unknown):  # the probe rdma_ports reports it
        return
    paths = {path[-1]: path for path in gpu_paths(host)}
    nearest = {gpu: nearest_ports(path, ports) for gpu, path in paths.items()}
    kinds = {gpu: {(port.kind.type, port.kind.link_layer) for port in near} for gpu, near in nearest.items() if near}
    if len(kinds) < 2 or set.intersection(*kinds.values()):
        return
    usual = Counter(kind for own in kinds.values() for kind in own).most_common(1)[0][0]
    outliers = {gpu: near for gpu, near in nearest.items() if near and usual not in kinds[gpu]}
    gpu, near = next(iter(outliers.items()))
    yield finding(
        "NIC_MIXED",
        near[0].device,
        f"({near[0].kind.type}, {near[0].kind.link_layer}) is beside GPU {gpu}; most have {usual[0]}, {usual[1]}",
        evidence={"nics_by_gpu": {gpu: [port.name for port in near] for gpu, near in nearest.items()}, "usual": usual},
        fix="Give all GPUs of a machine NICs of one kind, or leave the others out with NCCL_IB_HCA.",
        commands=("nvidia-smi topo -m", "rdma link"),
    )
