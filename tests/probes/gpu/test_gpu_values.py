"""The pure parts of the GPU probes: kernel logs, Xids, SLURM's device numbers, NVML's bus ids, the fabric's mask."""

import gzip

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import SHARED
from support.rows import rows

from laggard.kit.majority import majority
from laggard.model import Severity
from laggard.probes.errors import Unknown
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.model.services import gpus_of_job
from laggard.probes.gpu.rules.xid_rules import Action, Devices, explain_recovery_action, explain_xid, find_witnesses
from laggard.probes.gpu.xid import judge_xids
from laggard.probes.host.kernel_log import parse_messages
from laggard.probes.nvlink.fabric_state import judge_fabric
from laggard.probes.nvml.model import Gpu, GpuFabricInfo, Nvml, sysfs_bus_id

XID_119 = SHARED / "data" / "dmesg-xid-119.log.gz"
RECORD = "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python, GPU has fallen off the bus."


@pytest.mark.skipif(not XID_119.exists(), reason="the recorded hardware is not here")
def test_a_recorded_log_with_xid_119() -> None:
    lines = find_xids(gzip.decompress(XID_119.read_bytes()).decode())
    assert {(line.bus_id, line.code) for line in lines} == {("0000:9b:00", 119)}
    findings, facts = judge_xids(lines)
    assert [(found.code, found.severity, found.device) for found in findings] == [
        ("GPU_XID", Severity.CRITICAL, "GPU 0000:9b:00.0")
    ]
    assert facts == {} and findings[0].evidence["xid"] == 119


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (f"3,1990,86340011,-;{RECORD}", 86.340011),
        (f"3,1990,86340011,-,caller=T7;{RECORD}", 86.340011),
        (f"[   86.340011] {RECORD}", 86.340011),
        (f"<3>[   86.340011] {RECORD}", 86.340011),
        (f"[   86.340011] [ T2024] {RECORD}", 86.340011),
        (f"[Sun Feb 23 16:24:18 2025] {RECORD}", None),
        (f"Feb 23 16:24:18 node7 kernel: [   86.340011] {RECORD}", 86.340011),
        (f"2025-02-23T16:24:18.1+01:00 node7 kernel: {RECORD}", None),
        (RECORD, None),
    ],
)
def test_each_form_of_a_kernel_log_is_read(line: str, seconds: float | None) -> None:
    (message,) = parse_messages(line)
    assert message.seconds == (None if seconds is None else pytest.approx(seconds))
    (xid,) = find_xids(line)
    assert (xid.bus_id, xid.code, xid.text) == ("0000:9b:00", 79, "pid=7, name=python, GPU has fallen off the bus.")


@rows("probes/xid_lines")
def test_each_form_of_an_xid_line_is_read(text: str, bus: str, code: int) -> None:
    (found,) = find_xids(text)
    assert (found.bus_id, found.code) == (bus, code)


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        *((code, "", Action.APPLICATION) for code in (8, 13, 31, 32, 43, 45, 68, 69)),
        *((code, "", Action.RESET) for code in (48, 64, 74, 95, 119, 120, 140)),
        (79, "", Action.REBOOT),
        *((code, "", Action.WATCH) for code in (63, 92, 94, 176, 9999)),
        *((code, "", Action.RESET) for code in (169, 173, 175)),
        (174, "", Action.APPLICATION),
        (149, "NETIR_LINK_EVT Fatal   XC0 i0 Link 03 (0x004505c6)", Action.RESET),
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 03 (0x004505c6)", Action.WATCH),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 03 (0x026005c6 0x00000000 0x00000000)", Action.WATCH),  # 100110
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x028005c6 0x00000000 0x00000000)", Action.WATCH),  # 101000
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x02a005c6 0x00000000 0x00000000)", Action.RESET),  # 101010
        (149, "NETIR_MFDE_EVENT Fatal XC0 i0 Link 03 (0x02600646 0x00000001)", Action.RESET),
        (145, "RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x026005c6 0x00000000)", Action.RESET),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", Action.RESET),
        (154, "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Action.RESET),
        (154, "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)", Action.WATCH),
        (154, "GPU recovery action changed from 0x0 (None) to 0x9 (Unknown)", Action.WATCH),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Action.RESET),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Action.REBOOT),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Action.APPLICATION),
    ],
)
def test_the_action_of_an_xid(code: int, text: str, action: Action) -> None:
    assert explain_xid(code, text).action is action


@given(st.text(), st.binary())
def test_any_log_can_be_read(text: str, data: bytes) -> None:
    for log in (text, data.decode(errors="replace"), RECORD + text):
        found = find_xids(log)
        assert len(found) <= log.count("Xid") + log.count("off the bus"), "an Xid that the driver did not log"
        assert len(judge_xids(found)[0]) <= len(found)


@pytest.mark.parametrize("number", range(1, 10))
def test_nvml_and_xid_154_agree_on_a_recovery_action(number: int) -> None:
    action = explain_xid(154, f"GPU recovery action changed from 0x0 (None) to {number:#x} (whatever)").action
    severe = explain_recovery_action(number).severity is Severity.CRITICAL
    assert (action is not Action.WATCH) == severe == (number in (1, 2, 3, 4, 6, 7))


TO_RESET = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
RESET = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
OTHER = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x5 (Recover IMEX Domain) to 0x0 (None)"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:07:44 UTC 2025"
XID_95 = "NVRM: Xid (PCI:0000:9b:00): 95, pid=7, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"


@pytest.mark.parametrize(
    ("log", "open_codes"),
    [
        ([XID_95, TO_RESET, RESET], []),
        ([XID_95, TO_RESET, LOADED], []),
        ([XID_95, TO_RESET, RESET, XID_95], [95]),
        ([LOADED, XID_95, TO_RESET], [95, 154]),
        ([XID_95, OTHER], [95]),  # no reset: something else was put right
        ([XID_95, RESET.replace("9b", "bb")], [95]),  # another GPU's
        ([TO_RESET, TO_RESET], [154]),
    ],
)
def test_a_reset_closes_what_came_before(log: list[str], open_codes: list[int]) -> None:
    findings, _ = judge_xids(find_xids("\n".join(log)))
    assert [found.evidence["xid"] for found in findings] == open_codes
    assert all(found.evidence["count"] == 1 for found in findings)


PROBE_FAILED = "NVRM: The NVIDIA probe routine failed for 1 device(s)."


@pytest.mark.parametrize(("seconds", "open_codes"), [(0.1, [95]), (600.0, [])])
def test_a_load_of_the_start_that_failed_closes_nothing_and_a_later_one_does(
    seconds: float, open_codes: list[int]
) -> None:
    """The driver writes that it is loaded after its probe routine, at the same start."""
    log = f"[  100.0] {XID_95}\n[  100.1] {PROBE_FAILED}\n[  {100.1 + seconds}] {LOADED}"
    assert [found.evidence["xid"] for found in judge_xids(find_xids(log)).findings] == open_codes


GONE = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
GONE_AT_START = """NVRM: The NVIDIA GPU 0000:9b:00.0
NVRM: (PCI ID: 10de:2330) installed in this system has
NVRM: fallen off the bus and is not responding to commands."""


@pytest.mark.parametrize("log", [GONE, GONE_AT_START, GONE_AT_START.replace("\n", "\\x0a"), f"{RECORD}\n{GONE}"])
def test_a_gpu_off_the_bus_is_one_finding_with_an_xid_or_without(log: str) -> None:
    (found,) = judge_xids(find_xids(log)).findings
    assert (found.device, found.severity) == ("GPU 0000:9b:00.0", Severity.CRITICAL)
    assert found.evidence["xid"] == 79 and found.evidence["count"] == 1


@pytest.mark.parametrize(("cause", "severity"), [(149, Severity.CRITICAL), (31, None)])
def test_an_xid_that_ended_channels_counts_where_its_own_line_is_gone(cause: int, severity: Severity | None) -> None:
    own = "NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=python3, Ch 0000000{} caused by previous Xid {}"
    log = "\n".join(own.format(channel, cause) for channel in range(3))
    found = judge_xids(find_xids(log)).findings
    assert [(it.severity, it.evidence["xid"], it.evidence["count"]) for it in found] == (
        [(severity, cause, 1)] if severity else []
    )
    before = f"NVRM: Xid (PCI:0000:9b:00): {cause}, NETIR_LINK_DOWN Fatal XC0 i0 Link 03 (0x026005c6)"
    assert not any(it.severity is Severity.CRITICAL for it in judge_xids(find_xids(f"{before}\n{log}")).findings)


def test_a_gpu_that_the_driver_ignores_is_not_off_the_bus() -> None:
    ignored = GONE_AT_START.splitlines()[0] + " (PCI ID: 10de:1180)\nNVRM: installed in this system is not supported."
    assert find_xids(ignored) == []


def test_the_driver_that_wants_nothing_now_makes_a_reset_a_warning() -> None:
    lines = find_xids(f"{XID_95}\n{RECORD.replace('9b', 'bb')}")
    gpus = tuple(
        Gpu(index=index, bus_id=f"0000:{bus}:00.0", recovery_action=0) for index, bus in enumerate(("9b", "bb"))
    )
    lost = msgspec.structs.replace(gpus[1], errors={"uuid": "GPU_IS_LOST"})

    def severities(*answers: Gpu) -> dict[str, Severity]:
        devices = Devices(("0000:9b:00.0", "0000:bb:00.0"), (), confined=False)
        witnesses = find_witnesses(lines, Nvml(gpus=answers), devices)
        return {it.device: it.severity for it in judge_xids(lines, None, witnesses).findings}

    quiet = {"GPU 0000:9b:00.0": Severity.WARNING, "GPU 0000:bb:00.0": Severity.WARNING}
    assert severities(*gpus) == quiet
    assert severities(gpus[0], lost) == {**quiet, "GPU 0000:bb:00.0": Severity.CRITICAL}
    assert severities(gpus[0]) == {**quiet, "GPU 0000:bb:00.0": Severity.CRITICAL}
    assert {it.severity for it in judge_xids(lines).findings} == {Severity.CRITICAL}  # a log, and nobody to ask


def _nvml(*minors: int | None) -> Nvml:
    return Nvml(gpus=tuple(Gpu(index=index, minor=minor) for index, minor in enumerate(minors)))


def test_slurm_numbers_gpus_by_minor_number() -> None:
    job = gpus_of_job({"SLURM_JOB_GPUS": "0,2-3"}, _nvml(3, 2, 1, 0))
    assert job is not None and [gpu.index for gpu in job.gpus] == [3, 1, 0] and job.missing == ()


def test_a_device_of_the_job_that_nvml_does_not_list() -> None:
    job = gpus_of_job({"SLURM_JOB_GPUS": "1,7"}, _nvml(0, 1, None))
    assert job is not None and [gpu.index for gpu in job.gpus] == [1] and job.missing == (7,)


def test_no_job_and_no_list_of_devices() -> None:
    assert gpus_of_job({}, _nvml(0)) is None and gpus_of_job({"SLURM_JOB_GPUS": ""}, _nvml(0)) is None
    with pytest.raises(Unknown, match="no list of numbers"):
        gpus_of_job({"SLURM_JOB_GPUS": "gpu:a100:2"}, _nvml(0))


@rows("probes/bus_ids")
def test_bus_ids_as_sysfs_writes_them(text: str, name: str) -> None:
    assert sysfs_bus_id(text) == name


@rows("probes/health_masks")
def test_the_health_mask(mask: int, words: list[str]) -> None:
    summaries = [summary for summary, _ in judge_fabric(GpuFabricInfo(state=3, health_mask=mask))]
    assert len(summaries) == len(words) and all(word in text for word, text in zip(words, summaries, strict=True))


@pytest.mark.parametrize(
    ("summary", "mask", "severity"),
    [
        (0, 0xAA, None),
        (1, 0xAA, None),
        (2, 0xAA, Severity.CRITICAL),
        (3, 0xAA, Severity.WARNING),
        (2, 0x9A, Severity.CRITICAL),  # the mask says more
        (9, 0xAA, None),
    ],
)
def test_the_health_summary_counts_where_the_mask_says_nothing(
    summary: int, mask: int, severity: Severity | None
) -> None:
    found = list(judge_fabric(GpuFabricInfo(state=3, health_mask=mask, health_summary=summary)))
    assert [it for _, it in found] == ([severity] if severity else [])


def test_a_majority_is_more_than_half() -> None:
    assert (majority([1, 1, 2]), majority([1, 2]), majority([])) == (1, None, None)
    assert (majority([1], fewest=2), majority([1, 1, 2], fewest=3), majority([1, 1], fewest=3)) == (None, 1, None)
