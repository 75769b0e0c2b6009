"""PCI probes beyond the recorded machines: unreadable files, rules that no machine shows, real machines."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.judge import Check
from support.paths import SHARED
from support.rows import rows

from laggard.diagnose.lspci import judge_pci_tree, parse_lspci, unjudged_parts
from laggard.model import Severity
from laggard.probes.errors import Unknown
from laggard.probes.pci.acs import PathType, find_acs_faults, judge, peer_paths
from laggard.probes.pci.aer import parse_total
from laggard.probes.pci.model.config_space import ConfigSpace, PciExpress
from laggard.probes.pci.model.tree import LinkState, PciDevice, PciTree

pytestmark = pytest.mark.usefixtures("without_processes")

Copy = Callable[[str], Path]
PROBES = "pcie_links pcie_requests pcie_errors acs iommu numa"


def findings_of(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(finding["code"], finding["severity"], finding["device"]) for finding in report["findings"]]


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {probe["name"]: probe["verdict"] for probe in report["probes"]}


def configs(root: Path) -> list[Path]:
    return sorted(root.glob("sys/devices/pci*/**/config"))


def device(root: Path, address: str) -> Path:
    return (root / "sys/bus/pci/devices" / address).resolve()


def test_without_root_registers_are_unknown_and_links_are_judged(copy_of: Copy, check: Check) -> None:
    root = copy_of("acs_on")
    for path in configs(root):
        path.write_bytes(path.read_bytes()[:64])
    report = check(root, "acs pcie_requests pcie_links")
    assert (findings_of(report), report["status"]) == ([], 2)
    assert verdicts(report) == {"acs": "unknown", "pcie_requests": "unknown", "pcie_links": "ok"}
    assert all("root" in probe["reason"] for probe in report["probes"] if probe["verdict"] == "unknown")


def test_a_finding_stays_where_another_bridge_cannot_be_read(copy_of: Copy, check: Check) -> None:
    root = copy_of("acs_on")
    (device(root, "0000:39:01.0") / "config").unlink()
    report = check(root, "acs")
    assert ("ACS_ENABLED", "critical", "0000:17:01.0") in findings_of(report)
    assert "ACS of 1 bridges is unknown: cannot read" in report["probes"][0]["reason"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b"\xff" * 64])
def test_a_bridge_that_does_not_answer_is_unknown(content: bytes, copy_of: Copy, check: Check) -> None:
    root = copy_of("hgx_h100")
    (device(root, "0000:17:01.0") / "config").write_bytes(content)
    assert verdicts(check(root, "acs")) == {"acs": "unknown"}


@pytest.mark.parametrize(
    "content", ["", "Unknown\n", "Unknown speed\n", "\0\1\2", "99999999999999999999\n", "16.0.0 GT/s"]
)
def test_a_link_without_a_speed_is_unknown(content: str, copy_of: Copy, check: Check) -> None:
    root = copy_of("hgx_h100")
    for address in ("0000:1a:00.0", "0000:17:02.0"):  # both of its ends
        (device(root, address) / "current_link_speed").write_text(content)
    report = check(root, "pcie_links")
    assert (findings_of(report), verdicts(report)) == ([], {"pcie_links": "unknown"})
    assert "0000:1a:00.0" in report["probes"][0]["reason"]


def test_a_machine_without_a_list_of_devices_is_unknown(copy_of: Copy, check: Check) -> None:
    root = copy_of("plain")
    (root / "sys/bus/pci").rename(root / "sys/bus/not_pci")
    assert set(verdicts(check(root, PROBES)).values()) == {"unknown"}


def test_a_device_that_vanishes_while_it_is_read_is_no_traceback(copy_of: Copy, check: Check) -> None:
    root = copy_of("hgx_h100")
    device(root, "0000:19:00.0").rename(root / "gone")
    for probe in check(root, PROBES)["probes"]:
        assert "failed:" not in probe["reason"], probe


@rows("probes/damaged_pci")
def test_a_damaged_file_is_unknown(probe: str, path: str, copy_of: Copy, check: Check) -> None:
    root = copy_of("hgx_h100")
    if (root / path).is_dir():
        (root / path).rmdir()
    (root / path).write_bytes(b"\x7fELF\0")
    assert verdicts(check(root, probe)) == {probe: "unknown"}


def test_a_group_without_a_type_is_unknown(copy_of: Copy, check: Check) -> None:
    root = copy_of("iommu_passthrough")
    (root / "sys/kernel/iommu_groups/3/type").unlink()
    assert verdicts(check(root, "iommu")) == {"iommu": "unknown"}


def test_the_profile_sets_endpoints_and_virtual(copy_of: Copy, tmp_path: Path, check: Check) -> None:
    root, profile = copy_of("acs_harmless"), tmp_path / "profile.yaml"

    def acs(**keys: object) -> list[tuple[str, str, str]]:
        profile.write_text(json.dumps({"thresholds": {"acs": keys}}))
        return findings_of(check(root, "acs", "--profile", str(profile)))

    nvme_and_nic = ["0000:18:00.0", "0000:1a:00.0"]  # such as storage that GPUs read directly
    assert acs(endpoints=nvme_and_nic) == [("ACS_ENABLED", "critical", "0000:17:00.0")]
    assert acs(endpoints=nvme_and_nic, virtual=True) == [("ACS_ENABLED", "warning", "0000:1a:00.0")]
    assert acs(endpoints=["0000:18:00.0"]) == []
    assert acs() == []


def test_an_endpoint_that_is_not_there_is_unknown(copy_of: Copy, tmp_path: Path, check: Check) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text('thresholds: {acs: {endpoints: ["0000:de:ad.0"]}}')
    assert verdicts(check(copy_of("hgx_h100"), "acs", "--profile", str(profile))) == {"acs": "unknown"}


def test_the_profile_sets_the_expected_link(copy_of: Copy, tmp_path: Path, check: Check) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text('thresholds: {pcie_links: {expected: {"0000:18:00.0": [16.0, 4], "0000:1b:00.0": [32.0, 16]}}}')
    report = check(copy_of("hgx_h100"), "pcie_links", "--profile", str(profile))
    assert findings_of(report) == [("PCIE_LINK_DEGRADED", "critical", "0000:1b:00.0")]


# Rules that no recorded machine shows


def bridge(address: str, parent: str | None, control: int | None) -> PciDevice:
    return PciDevice(address, parent, 0x0604, 0x8086, 1, config=ConfigSpace(acs=control))


def gpu(address: str, parent: str | None) -> PciDevice:
    return PciDevice(address, parent, 0x0302, 0x10DE, 0x26B9, config=ConfigSpace())


def nic(address: str, parent: str | None, ats: bool | None = None) -> PciDevice:
    return PciDevice(address, parent, 0x0200, 0x15B3, 0x1021, config=ConfigSpace(ats_enabled=ats))


def tree(*devices: PciDevice) -> PciTree:
    return PciTree({device.address: device for device in devices})


def two_root_ports(control: int) -> PciTree:
    return tree(
        bridge("0000:00:01.0", None, control),
        bridge("0000:00:02.0", None, control),
        gpu("0000:01:00.0", "0000:00:01.0"),
        nic("0000:02:00.0", "0000:00:02.0"),
    )


@pytest.mark.parametrize("bit", [0x04, 0x08, 0x10, 0x20])
def test_root_ports_alone_are_a_warning(bit: int) -> None:
    direct = two_root_ports(bit)
    severities = {finding.severity for finding in judge_pci_tree(direct, virtual=False)}
    assert severities == {Severity.WARNING}


@pytest.mark.parametrize("bit", [0x00, 0x01, 0x02, 0x40])
def test_bits_that_redirect_nothing_are_quiet(bit: int) -> None:
    assert list(judge_pci_tree(two_root_ports(bit), virtual=False)) == []


def test_root_ports_are_harmless_where_a_nic_is_behind_the_gpus_switch() -> None:
    one = two_root_ports(0x1D)
    near = tree(
        *one,
        bridge("0000:03:00.0", "0000:00:03.0", 0),
        bridge("0000:00:03.0", None, 0x1D),
        bridge("0000:04:00.0", "0000:03:00.0", 0),
        bridge("0000:04:01.0", "0000:03:00.0", 0),
        gpu("0000:05:00.0", "0000:04:00.0"),
        nic("0000:06:00.0", "0000:04:01.0"),
    )
    only_near = tree(*(device for device in near if device.address != "0000:01:00.0"))
    assert list(judge_pci_tree(only_near, virtual=False)) == []


def test_blocking_translated_requests_matters_only_with_ats() -> None:
    def behind_a_switch(ats: bool) -> PciTree:
        return tree(
            bridge("0000:00:01.0", None, 0),
            bridge("0000:01:00.0", "0000:00:01.0", None),
            bridge("0000:02:00.0", "0000:01:00.0", 0x02),
            bridge("0000:02:01.0", "0000:01:00.0", 0x02),
            gpu("0000:03:00.0", "0000:02:00.0"),
            nic("0000:04:00.0", "0000:02:01.0", ats),
        )

    assert list(judge(behind_a_switch(False), peer_paths_of(behind_a_switch(False)), False)) == []
    assert len(list(judge(behind_a_switch(True), peer_paths_of(behind_a_switch(True)), False))) == 2


@pytest.mark.parametrize(("nic_port", "wrong"), [(0x5D, 0), (0x1D, 2), (0x5F, 2)])
def test_a_nic_with_ats_needs_a_port_that_passes_translated_requests(nic_port: int, wrong: int) -> None:
    machine = tree(
        bridge("0000:00:01.0", None, 0),
        bridge("0000:01:00.0", "0000:00:01.0", None),
        bridge("0000:02:00.0", "0000:01:00.0", 0x1D),
        bridge("0000:02:01.0", "0000:01:00.0", nic_port),
        gpu("0000:03:00.0", "0000:02:00.0"),
        nic("0000:04:00.0", "0000:02:01.0", ats=True),
    )
    assert len(list(judge(machine, peer_paths_of(machine), virtual=False))) == wrong
    assert len(list(judge(machine, peer_paths_of(machine), virtual=True))) == min(wrong, 1)


def peer_paths_of(machine: PciTree) -> Any:
    return peer_paths(machine, machine.endpoints())


def data_direct(nic_port: int, gpu_port: int, root: int) -> PciTree:
    """ConnectX-8 on Grace: its Data Direct function and the GPU behind one switch."""
    return tree(
        bridge("0009:00:00.0", None, root),
        bridge("0009:01:00.0", "0009:00:00.0", None),
        bridge("0009:02:00.0", "0009:01:00.0", nic_port),
        bridge("0009:02:01.0", "0009:01:00.0", gpu_port),
        PciDevice("0009:03:00.0", "0009:02:00.0", 0x0880, 0x15B3, 0x2100, config=ConfigSpace()),
        gpu("0009:06:00.0", "0009:02:01.0"),
        bridge("0000:00:00.0", None, 0x1D),
        nic("0000:03:00.0", "0000:00:00.0"),
    )


def test_data_direct_needs_its_own_bits() -> None:
    right = data_direct(0x19, 0x15, 0x1C)
    assert [path.type for path in peer_paths_of(right)] == [PathType.DATA_DIRECT]
    assert find_acs_faults(right, peer_paths_of(right)) == ()


@pytest.mark.parametrize(
    ("ports", "wrong"),
    [((0x1D, 0x15, 0x1C), "0009:02:00.0"), ((0x19, 0x1D, 0x1C), "0009:02:01.0"), ((0x19, 0x15, 0x1D), "0009:00:00.0")],
)
def test_the_kernels_bits_are_wrong_for_data_direct(ports: tuple[int, int, int], wrong: str) -> None:
    (finding,) = judge_pci_tree(data_direct(*ports), virtual=False)
    assert (finding.device, finding.severity) == (wrong, Severity.WARNING)


def on_node(device: PciDevice, numa_node: int) -> PciDevice:
    return device._replace(numa_node=numa_node)


@pytest.mark.parametrize(("nics", "far"), [(1, []), (2, ["0001:01:00.0"])])
def test_a_processor_without_a_nic_matters_where_another_has_two(nics: int, far: list[str]) -> None:
    gpus = [on_node(gpu("0000:01:00.0", None), 0), on_node(gpu("0001:01:00.0", None), 1)]
    machine = tree(*gpus, *(on_node(nic(f"0000:0{2 + number}:00.0", None), 0) for number in range(nics)))
    assert [
        finding.device for finding in judge_pci_tree(machine, virtual=False) if finding.code == "NUMA_MISMATCH"
    ] == far


Link = tuple[float, ...]


def slots(*links: Link) -> PciTree:
    """NICs of one model, each behind a root port that can do 32 GT/s x16."""
    ports = [bridge(f"0000:00:0{number}.0", None, 0) for number in range(len(links))]
    able = [port._replace(link=LinkState(max_speed=32.0, max_width=16)) for port in ports]
    ends = [
        nic(f"0000:1{number}:00.0", f"0000:00:0{number}.0")._replace(link=LinkState(*link))
        for number, link in enumerate(links)
    ]
    return tree(*able, *ends)


@rows("probes/peer_links")
def test_links_of_peers(links: tuple[Link, ...], severities: tuple[str, ...]) -> None:
    """`links`: of each device how fast and wide it is, and could be."""
    found = [it for it in judge_pci_tree(slots(*links), virtual=False) if it.code == "PCIE_LINK_DEGRADED"]
    assert tuple(it.severity for it in found) == severities


@rows("probes/made_up_ports")
def test_ports_that_a_hypervisor_makes_up_do_not_count(links: tuple[Link, ...], severities: tuple[str, ...]) -> None:
    assert tuple(it.severity for it in judge_pci_tree(slots(*links), virtual=True)) == severities


def test_a_lone_gpu_below_a_port_that_is_set_too_slow() -> None:
    """It has no peer and may be idle; the speed that its port is set to shows the fault."""
    port = bridge("0000:00:00.0", None, 0)._replace(link=LinkState(max_speed=32.0, max_width=16))
    end = gpu("0000:10:00.0", "0000:00:00.0")._replace(link=LinkState(2.5, 16, 32.0, 16))

    def judged(target: float) -> list[str]:
        express = PciExpress(2.5, 16, 32.0, 16, target, 256, 512)
        config = port.config._replace(express=express)
        return [finding.summary for finding in judge_pci_tree(tree(port._replace(config=config), end), virtual=False)]

    assert judged(32.0) == []
    (summary,) = judged(8.0)
    assert "the port is set to 8" in summary


@pytest.mark.parametrize(("size", "codes"), [(128, ["warning"]), (256, ["warning"]), (512, []), (4096, [])])
def test_a_read_request_size_without_peers(size: int, codes: list[str]) -> None:
    express = PciExpress(8.0, 16, 8.0, 16, 8.0, 256, size)
    end = nic("0000:10:00.0", None)._replace(config=ConfigSpace(express=express), link=LinkState(8.0, 16, 8.0, 16))
    assert [finding.severity.value for finding in judge_pci_tree(tree(end), virtual=False)] == codes


@pytest.mark.parametrize(("ats", "verdict"), [("", "skipped"), ("0080", "ok")])
def test_in_a_guest_only_ats_is_judged(ats: str, verdict: str, copy_of: Copy, check: Check) -> None:
    """A virtual machine in which no bridge has ACS on: its hypervisor has it. Visible is only whether NICs have ATS."""
    root = copy_of("hgx_h100")
    (root / "proc/cpuinfo").write_text("flags\t\t: fpu hypervisor\n")
    for name in ("0000:1b:00.0", "0000:9d:00.0"):  # the storage NICs have no such capability
        (root / "sys/bus/pci/devices" / name).unlink()
    for path in (root / "sys/bus/pci/drivers/mlx5_core").iterdir():
        if not (root / "sys/bus/pci/devices" / path.name).exists():
            continue
        config = path / "config"
        data = bytearray(config.read_bytes())
        data[0x206 : 0x206 + len(ats) // 2] = bytes.fromhex(ats)
        config.write_bytes(data)
    report = check(root, "acs")
    assert (findings_of(report), verdicts(report)) == ([], {"acs": verdict})


@pytest.mark.parametrize("text", ["", "RxErr\n", "RxErr x\n", "RxErr -1\n", "\u00b2 \u00b2\n"])
def test_a_text_that_is_no_list_of_errors(text: str) -> None:
    with pytest.raises(Unknown):
        parse_total(text, "TOTAL_ERR_COR")


# Real machines


def shared(name: str) -> Path:
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


def test_a_real_hgx_h100_has_no_pci_problem() -> None:
    """Six of its bridges have ACS bits set, and none of them is between a GPU and a NIC."""
    text = gzip.decompress(shared("hgx-h100-lspci-vvv.txt.gz").read_bytes()).decode(errors="replace")
    machine = parse_lspci(text)
    set_bits = [device for device in machine if device.config.acs]
    assert (len(machine.devices), len(set_bits), len(machine.endpoints())) == (517, 6, 20)
    assert ([*judge_pci_tree(machine)], [*unjudged_parts(machine)]) == ([], [])
    switched_on = text.replace("ReqRedir- CmpltRedir- UpstreamFwd- E", "ReqRedir+ CmpltRedir+ UpstreamFwd+ E")
    found_on = [finding.device for finding in judge_pci_tree(parse_lspci(switched_on)) if finding.code == "ACS_ENABLED"]
    assert len(found_on) == 18  # the ports of 8 GPUs, 8 NICs, 2 storage NICs


@pytest.mark.parametrize("lowered", [False, True])
def test_a_real_dgx_a100(lowered: bool, tmp_path: Path, check: Check) -> None:
    """It was recorded without classes and maximum speeds: a NIC is known by its RDMA device, and judged by peers."""
    for name, content in json.loads(shared("dgx-a100-learn_good.json").read_text()).items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if lowered:
        (tmp_path / "sys/class/pci_bus/0000:ba/device/0000:ba:00.0/current_link_speed").write_text("8 GT/s\n")
    report = check(tmp_path, "pcie_links")
    assert findings_of(report) == ([("PCIE_LINK_DEGRADED", "warning", "0000:ba:00.0")] if lowered else [])
    if not lowered:
        assert verdicts(report) == {"pcie_links": "unknown"}  # the classes of the other devices were not recorded
