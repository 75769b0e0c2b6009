"""The facts of the probes identity and inventory, which the collector compares."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judge import Check
from support.rows import rows

from laggard.collector.outliers import COMPARED_FACTS, compared_node, consensus, hardware_of, value_of
from laggard.probes.system.identity import colon_lines, cpu, distribution, driver

pytestmark = pytest.mark.usefixtures("without_processes")

Machine = Callable[[str], Path]

OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16-A23)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
CLOSED = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
GPU = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 10
GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b
Video BIOS: \t {vbios}
Bus Location: \t 0000:62:00.0
GPU Firmware: \t 535.129.03
"""
CPUINFO = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480C
microcode\t: 0x2b000571

processor\t: 1
"""


def write_file(root: Path, path: str, text: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def with_software(root: Path, vbios: str = "96.00.99.00.01") -> Path:
    files = {
        "/etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n',
        "/proc/driver/nvidia/version": OPEN,
        "/proc/driver/nvidia/gpus/0000:62:00.0/information": GPU.format(vbios=vbios),
        "/proc/driver/nvidia/gpus/0000:9b:00.0/information": GPU.format(vbios="??.??.??.??.??"),
        "/usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.4.20240301"}}',
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": "",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2": "",
        "/sys/module/mlx5_core/version": "24.04-0.6.6\n",
        "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
        "/sys/class/dmi/id/product_name": "DGXH100\n",
        "/sys/class/dmi/id/bios_version": "1.01.03\n",
        "/proc/cpuinfo": CPUINFO,
    }
    for path, text in files.items():
        write_file(root, path, text)
    return root


def test_identity_reports_hardware_and_software(copy_of: Machine, check: Check) -> None:
    report = check(with_software(copy_of("one_nic")), "identity")
    assert report["verdict"] == "ok"
    assert report["facts"]["identity"] == {
        "kernel_release": "5.15.0-113-generic",
        "distribution": "ubuntu 22.04",
        "nvidia_driver_version": "550.54.15",
        "nvidia_driver_flavour": "open",
        "gpu_count": 2,
        "gpu_models": ["NVIDIA H100 80GB HBM3"],
        "gpu_vbios": ["96.00.99.00.01"],
        "cuda_version": "12.4.20240301",
        "nccl_versions": ["2.21.5"],
        "ofed_version": "24.04-0.6.6",
        "product": "NVIDIA DGXH100",
        "bios_version": "1.01.03",
        "cpu_model": "Intel(R) Xeon(R) Platinum 8480C",
        "cpu_microcode": "0x2b000571",
    }


def test_in_a_container_installed_software_is_the_images_and_not_the_nodes(copy_of: Machine, check: Check) -> None:
    root = with_software(copy_of("one_nic"))
    own = ("/etc/hosts", "/etc/resolv.conf")
    lines = ["overlay / overlay ro 0 0", *(f"/dev/vda {path} ext4 rw 0 0" for path in own)]
    (root / "proc/self/mounts").write_text("\n".join(lines) + "\n")
    told = check(root, "identity")["facts"]["identity"]
    assert not {"distribution", "cuda_version", "nccl_versions"} & set(told)
    assert told["kernel_release"] == "5.15.0-113-generic" and told["nvidia_driver_version"] == "550.54.15"


def test_a_machine_without_gpus_differs_from_one_without_a_driver(machine: Machine, check: Check) -> None:
    assert check(machine("plain"), "identity")["facts"]["identity"]["gpu_models"] == ["no GPU"]
    assert check(machine("hgx_h100"), "identity")["facts"]["identity"].get("gpu_models") != ["no GPU"]


def test_inventory_reports_devices(machine: Machine, check: Check) -> None:
    report = check(machine("hgx_h100"), "inventory")
    facts = report["facts"]["inventory"]
    assert report["verdict"] == "ok"
    assert len(facts["gpu_links"]) == 8 and {link["width"] for link in facts["gpu_links"].values()} == {"16"}
    assert len(facts["rdma"]) == 10 and all(nic["firmware"] and nic["board"] for nic in facts["rdma"].values())
    assert "inventory" not in check(machine("plain"), "inventory")["facts"]


@pytest.mark.parametrize("damage", ["", b"\x7fELF\0\xff"])
def test_a_machine_without_a_kernel_is_unknown(damage: str | bytes, copy_of: Machine, check: Check) -> None:
    root = copy_of("plain")
    write_file(root, "/proc/sys/kernel/osrelease", damage)
    report = check(root, "identity")
    assert report["verdict"] == "unknown" and "/proc/sys/kernel/osrelease" in report["probes"][0]["reason"]


@rows("probes/unreadable_identity")
def test_an_unreadable_file_makes_it_unknown_and_the_rest_is_reported(
    path: str, fact: str, copy_of: Machine, check: Check
) -> None:
    root = with_software(copy_of("one_nic"))
    write_file(root, path, b"\0\xff")
    report = check(root, "identity")
    assert report["verdict"] == "unknown" and path in report["probes"][0]["reason"]
    assert fact not in report["facts"]["identity"] and report["facts"]["identity"]["distribution"] == "ubuntu 22.04"


def test_the_collector_compares_the_facts_of_the_probes(machine: Machine, copy_of: Machine, check: Check) -> None:
    """From files to a finding: four nodes of one kind, one of them with another BIOS."""
    root = with_software(copy_of("hgx_h100"))
    report = check(root, "identity inventory limits clock")
    alike = {f"n{number}": compared_node(report["facts"]) for number in range(3)}
    assert consensus(alike) == ({}, ())
    write_file(root, "/sys/class/dmi/id/bios_version", "1.01.07\n")
    odd = check(root, "identity inventory limits clock")["facts"]
    ((node, (finding,)),) = consensus({**alike, "n3": compared_node(odd)}).findings.items()
    assert (node, finding.device, finding.evidence["value"]) == ("n3", "BIOS version", "1.01.07")
    assert hardware_of(odd) == "NVIDIA DGXH100 with NVIDIA H100 80GB HBM3"


def test_a_gpu_node_reports_nearly_all_comparable_facts(copy_of: Machine, check: Check) -> None:
    """A wrong path in COMPARED_FACTS would compare nothing, and go unnoticed."""
    facts = check(with_software(copy_of("hgx_h100")))["facts"]
    missing = {comparable.name for comparable in COMPARED_FACTS if value_of(facts, comparable) is None}
    assert missing <= MAY_BE_MISSING, missing - MAY_BE_MISSING


MAY_BE_MISSING = {"GID layout", "PFC priorities", "ECN priorities", "partition keys"}
"""Of a node with RoCE, or with InfiniBand, which this one has not."""


def test_driver_versions() -> None:
    assert driver(OPEN) == ("550.54.15", "open")
    assert driver(CLOSED) == ("535.129.03", "proprietary")
    assert driver("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86") == ("570.86", "open")
    assert driver("") == ("", "")


def test_processors_without_a_name() -> None:
    assert cpu("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n") == ("arm 0x41 0xd4f", "")
    assert cpu("") == ("", "")


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    assert all(isinstance(value, str) for value in (distribution(text), *driver(text), *cpu(text)))
    assert all(name == name.strip() for name in colon_lines(text))
