"""AMD's GPUs: what amdgpu shows of them in sysfs and writes to the kernel's log, in every version and damaged."""

import itertools
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judge import judge

from laggard.model import ProbeResult, Report
from laggard.probes.errors import Unknown
from laggard.probes.gpu.count import CountThresholds
from laggard.probes.gpu.driver import driver_hung
from laggard.probes.gpu.model.amd_gpus import MAX_BYTES, parse_gpu_metrics, read_amd_gpus
from laggard.probes.gpu.model.amdgpu_log import Kind, amdgpu_messages, find_amdgpu_events
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Hang
from laggard.probes.pci.link import PcieLink, find_slow_links
from laggard.probes.pci.model.tree import LinkState, PciDevice
from laggard.probes.record.journal import TREES
from laggard.probes.registry import PROBES

Machine = Callable[[], Path]


@pytest.fixture
def healthy(machine: Callable[[str], Path], tmp_path: Path) -> Machine:
    """Makes copies of the healthy machine, which a test may change."""
    numbers = itertools.count()

    def copy() -> Path:
        return shutil.copytree(machine("mi300x_gpus"), tmp_path / str(next(numbers)), symlinks=True)

    return copy


def changed(root: Path, gpus: str = "0000:05:*", **files: str | bytes) -> Path:
    """The machine with other contents of files of its first GPU, or of others; `__` in a name stands for a slash."""
    for gpu in (root / "sys/bus/pci/drivers/amdgpu").glob(gpus):
        for name, content in files.items():
            path = gpu.resolve() / name.replace("__", "/")
            path.unlink(missing_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def judged(root: Path, *names: str) -> Report:
    return judge(root, [probe for probe in PROBES if probe.name in names])


def of(report: Report, name: str) -> ProbeResult:
    return next(probe for probe in report.probes if probe.name == name)


def table(minor: int, size: int, **values: tuple[str, int, int]) -> bytes:
    """A table gpu_metrics 1.`minor`. `values`: struct's letter, offset and value."""
    data = bytearray(size)
    struct.pack_into("<HBB", data, 0, size, 1, minor)
    for kind, offset, value in values.values():
        struct.pack_into(f"<{kind}", data, offset, value)
    return bytes(data)


def test_the_table_of_mi300_has_residencies_and_links() -> None:
    links = {f"link_{place}": ("H", 264 + 2 * place, up) for place, up in enumerate((1, 1, 0, 1, 1, 1, 1, 0xFFFF))}
    counts = {"cycles": ("I", 40, 99), "ppt": ("I", 48, 7), "hbm_thm": ("I", 60, 3)}
    metrics = parse_gpu_metrics(table(7, 2208, **counts, **links))
    assert (metrics.version, metrics.accumulation_counter) == ("1.7", 99)
    assert metrics.residencies == {"prochot": 0, "ppt": 7, "socket_thm": 0, "vr_thm": 0, "hbm_thm": 3}
    assert metrics.xgmi_links == (1, 1, 0, 1, 1, 1, 1, None) and metrics.throttle_bits is None


def test_each_version_has_its_places() -> None:
    old = parse_gpu_metrics(table(3, 120, bits=("Q", 112, 1 << 36)))
    assert (old.accumulation_counter, old.throttle_bits, old.residencies) == (None, 1 << 36, {})
    silent = parse_gpu_metrics(table(5, 360, status=("I", 104, 0)))
    assert (silent.throttle_bits, silent.residencies, silent.xgmi_links) == (None, {}, ())
    newer = parse_gpu_metrics(table(6, 1664, cycles=("I", 32, 10), heat=("I", 44, 4)))
    assert newer.accumulation_counter == 10 and newer.residencies["socket_thm"] == 4 and newer.xgmi_links == ()
    newest = parse_gpu_metrics(table(8, 3872, cycles=("I", 40, 10), link=("H", 264, 1)))
    assert newest.accumulation_counter == 10 and newest.xgmi_links == (1, 0, 0, 0, 0, 0, 0, 0)
    unknown = parse_gpu_metrics(table(7, 2208, cycles=("I", 40, 0xFFFFFFFF), bits=("I", 44, 0xFFFFFFFF)))
    assert unknown.accumulation_counter is None and "prochot" not in unknown.residencies


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (table(6, 384), "version 1.6 with 384 bytes, which is not read"),
        (table(9, 512), "version 1.9"),
        (table(7, 2208)[:100], "has 100 bytes and says 2208"),
        (struct.pack("<HBB", 120, 2, 3) + bytes(116), "version 2.3"),
    ],
)
def test_a_table_of_another_form_is_not_read(data: bytes, words: str) -> None:
    with pytest.raises(Unknown, match=words):
        parse_gpu_metrics(data)


@given(st.binary(max_size=MAX_BYTES + 8))
def test_no_bytes_do_harm(data: bytes) -> None:
    for head in (b"", *(struct.pack("<HBB", max(4, len(data)), 1, minor) for minor in range(10))):
        try:
            metrics = parse_gpu_metrics(head + data[len(head) :])
        except Unknown:
            continue
        assert len(metrics.xgmi_links) in (0, 8)


def test_a_reason_that_holds_now_is_a_warning_and_a_limit_of_power_is_none(healthy: Machine) -> None:
    hot = table(3, 120, bits=("Q", 112, 1 << 36 | 1))
    report = judged(changed(healthy(), gpu_metrics=hot), "gpu_throttle")
    ((code, severity, summary),) = [(it.code, it.severity.value, it.summary) for it in report.findings]
    assert (code, severity, summary) == ("GPU_THROTTLED", "warning", "slowed down by heat, at this moment")
    assert not judged(changed(healthy(), gpu_metrics=table(3, 120, bits=("Q", 112, 0xFF)))).findings


def test_what_a_version_does_not_tell_is_said(healthy: Machine) -> None:
    report = judged(changed(healthy(), "0000:*", gpu_metrics=table(5, 360)), "gpu_throttle", "nvlink")
    assert of(report, "gpu_throttle").reason == "gpu_metrics 1.5 says nothing of lowered clocks"
    assert "does not tell which XGMI links are up" in of(report, "nvlink").reason
    assert {probe.verdict.value for probe in report.probes} == {"skipped"}


def test_what_cannot_be_read_is_unknown_and_all_else_stands(healthy: Machine) -> None:
    root = changed(
        healthy(),
        gpu_metrics=b"\0\1",
        ras__umc_err_count="permission?\n",
        ras__gfx_err_count="ue: 2\nce: 0\n",
    )
    report = judged(root, "gpu_ecc", "gpu_throttle", "nvlink_errors")
    assert "an error count reads" in of(report, "gpu_ecc").reason and of(report, "gpu_ecc").verdict.value == "unknown"
    assert [(it.code, it.evidence["by_block"]) for it in report.findings] == [("GPU_ECC_UNCORRECTED", {"gfx": 2})]
    assert "gpu_metrics" in of(report, "gpu_throttle").reason


def test_what_clears_itself_is_not_read(healthy: Machine) -> None:
    """amdgpu clears xgmi_error for all who read it."""
    read: list[str] = []

    class Watched(Host):
        def read_bytes(self, path: str) -> bytes:
            read.append(path)
            return super().read_bytes(path)

    root = changed(healthy(), xgmi_error="0\n")
    assert len(read_amd_gpus(Watched(str(root)))) == 8 and any("umc_err_count" in path for path in read)
    assert not any("xgmi_error" in path for path in (*read, *TREES))


def test_the_number_of_a_profile_counts(healthy: Machine) -> None:
    (probe,) = (probe for probe in PROBES if probe.name == "gpu_count")
    for expected, findings in ((9, ["1 of 9 missing: amdgpu has 8 (by its own tables)"]), (8, []), (4, [])):
        report = judge(healthy(), [probe._replace(thresholds=CountThresholds(expected=expected))])
        assert [it.summary for it in report.findings] == findings


def test_a_rank_names_its_gpu_by_the_text_of_its_unique_id(healthy: Machine) -> None:
    """ROCm/ROCm#4203 has torch's UUID of an MI300X."""
    root = changed(healthy(), unique_id="f330dc4d00dee22b\n")
    uuids = judged(root, "gpu_count").facts["gpu_count"]["uuids"]
    assert uuids["GPU-66333330-6463-3464-3030-646565323262"] == {"bus_id": "0000:05:00.0"} and len(uuids) == 8


def test_a_slower_link_than_that_of_peers_which_do_the_same_is_a_warning(healthy: Machine) -> None:
    slow = changed(healthy(), current_link_speed="8.0 GT/s PCIe\n")
    busy = changed(healthy(), "0000:*", gpu_busy_percent="98\n")
    for root in (slow, changed(busy, current_link_speed="8.0 GT/s PCIe\n")):  # all idle, all at work
        (found,) = judged(root, "pcie_links").findings
        assert (found.code, found.severity.value, found.device) == ("PCIE_LINK_DEGRADED", "warning", "0000:05:00.0")
    idle = changed(busy, gpu_busy_percent="0\n", current_link_speed="8.0 GT/s PCIe\n")
    assert not judged(idle, "pcie_links").findings  # an idle GPU may lower it, and its peers work


def test_the_switch_of_a_gpu_lowers_its_speed_as_the_gpu_does() -> None:
    """The upstream port of a switch that is a part of the card: vendor 1002, and one GPU behind it."""
    wide = LinkState(16.0, 16, 16.0, 16)
    port = PciDevice("0000:00:01.1", None, 0x0604, 0x1022, link=wide)

    def link(state: LinkState, vendor: int = 0x1002) -> PcieLink:
        return PcieLink(PciDevice("0000:03:00.0", port.address, 0x0604, vendor, link=state), port, ("0000:05:00.0",))

    idle = wide._replace(speed=2.5)
    assert list(find_slow_links([link(idle)], {}, {})) == []
    assert [slow.quantity for slow in find_slow_links([link(idle, 0x10B5)], {}, {})] == ["speed"]  # another switch
    assert [slow.quantity for slow in find_slow_links([link(wide._replace(width=8))], {}, {})] == ["width"]


def test_a_read_of_amdgpu_that_does_not_return_is_named() -> None:
    hang = Hang("amdgpu: metrics of GPU 0000:05:00.0", 12.0, 10.0, 1)
    found = driver_hung(hang, "")
    assert found is not None and found.device == "amdgpu driver" and "amdgpu: metrics" in found.summary


A = "amdgpu 0000:05:00.0: amdgpu: "
B = "amdgpu 0000:26:00.0: amdgpu: "
UE = "{1}socket: 4, die: 1, 1 new uncorrectable hardware errors detected in umc block"


def kmsg(*lines: str) -> str:
    """The lines as records of /dev/kmsg, a second apart."""
    return "".join(f"6,{place},{(place + 100) * 1_000_000},-;{text}\n" for place, text in enumerate(lines))


def kinds(*lines: str) -> list[tuple[str, Kind, str]]:
    return [(it.address, it.kind, it.closed_by) for it in find_amdgpu_events(kmsg(*lines))]


def test_a_reset_closes_what_came_before_on_its_gpu_alone() -> None:
    events = kinds(A + UE, B + UE, A + "GPU reset begin!", A + "GPU reset(1) succeeded!")
    assert events == [
        ("0000:05:00.0", Kind.UNCORRECTABLE, "the GPU was reset"),
        ("0000:26:00.0", Kind.UNCORRECTABLE, ""),
        ("0000:05:00.0", Kind.RESET_BEGUN, "the GPU was reset"),
        ("0000:05:00.0", Kind.RESET_DONE, ""),
    ]


def test_neither_a_reset_nor_the_driver_lowers_the_number_of_bad_pages() -> None:
    lines = (A + "Saved bad pages 264 reaches threshold value 256", A + "GPU reset(1) succeeded!")
    assert kinds(*lines, "[drm] amdgpu kernel modesetting enabled.")[0] == ("0000:05:00.0", Kind.THRESHOLD, "")
    assert kinds(A + UE, "[drm] amdgpu kernel modesetting enabled.")[0][2] == "the driver was loaded anew"


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:05:[4121]: segfault at 0 ip 0000 sp 0000 error 4 in GPU reset(1) failed",
        f"audit: {A}GPU reset(1) failed",
        f"x: {A}device lost from bus!",
    ],
)
def test_the_text_of_a_user_is_no_event(line: str) -> None:
    assert kinds(line) == []


def test_every_kind_of_message_is_judged_as_something() -> None:
    told = {message.kind for message in amdgpu_messages(live=True)}
    assert told == set(Kind)
    assert all(kind.value and not kind.value.endswith(".") for kind in Kind)


def test_a_reset_that_failed_counts_for_longer_than_the_look_back(healthy: Machine) -> None:
    root = healthy()
    log = root / "laggard/kmsg"
    text = log.read_text() + f"3,900,60000000,-;{A}GPU reset(1) failed\n3,901,60000001,-;{B}ring comp_1.0.0 timeout\n"
    log.unlink()
    log.write_text(text)
    report = judged(root, "gpu_xid")
    assert [(it.code, it.severity.value, it.device) for it in report.findings] == [
        ("GPU_XID", "critical", "GPU 0000:05:00.0")
    ]
    assert report.facts["gpu_xid"]["page_faults_of_programs"] == 1
