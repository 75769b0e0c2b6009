"""`laggard diagnose` on what kernels log of drivers, disks and file systems: a fault, and what is right beside it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

BOOT = "[    0.000000] Linux version 5.15.0-113-generic\n[    1.000000] usb 1-1: new device\n"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"
LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5)\nNVRM: installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
MISMATCH = (
    "NVRM: API mismatch: the client has the version 535.1.2, but\nNVRM: this kernel module has the version 535.1.3.  "
    "Please\nNVRM: make sure that this kernel module and all NVIDIA driver\nNVRM: components have the same version."
)
PROBE = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
INIT = "NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x25:0x40:1470)"
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
GONE = "Lustre: fs-MDT0000-mdc-ffff9b2f: Connection to fs-MDT0000 (at 192.0.2.3@tcp) was lost; in progress operations"
BACK = "Lustre: fs-MDT0000-mdc-ffff9b2f: Connection restored to 192.0.2.3@tcp (at 192.0.2.3@tcp)"
MLX = "mlx5_core 0000:5e:00.0: "
UNPLUGGED, PLUGGED = (f"{MLX}Port module event: module 0, Cable {state}" for state in ("unplugged", "plugged"))
AER = "PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"


def log(*messages: str, apart: float = 60.0) -> str:
    """A log as dmesg prints it: the lines after a record's first are indented and have no time."""
    rows = (
        f"[{1000 + place * apart:12.6f}] " + text.replace("\n", "\n" + " " * 15) for place, text in enumerate(messages)
    )
    return BOOT + "".join(f"{row}\n" for row in rows)


def found(text: str) -> list[tuple[str, str, str]]:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (LOST, ("GPU_XID", "critical", "GPU 0000:b3:00.0")),
        (MISMATCH, ("GPU_DRIVER_FAILED", "critical", "NVIDIA's driver")),
    ],
)
def test_a_message_of_several_lines_is_one(message: str, expected: tuple[str, str, str]) -> None:
    """tests/data/rules/kernel.jsonl has a message of one line for each rule."""
    assert expected in found(log(message))


@pytest.mark.parametrize(
    "messages",
    [
        [LOST, LOADED],
        [INIT, LOADED],
        [MISMATCH, LOADED],
        [PROBE, LOADED],
        [INIT, "Linux version 6.8.0"],
        [GONE, BACK],
        [UNPLUGGED, PLUGGED],
        ["nouveau 0000:01:00.0: NVIDIA TU102 (162000a1)", LOADED],
        ["amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block"],
        ["blk_update_request: I/O error, dev sr0, sector 0", "I/O error, dev loop3, sector 2 op 0x0:(READ)"],
        ["md/raid1:md0: Disk failure on sdb1, disabling device.", "md: md0: recovery done."],
        ["md/raid1:md0: active with 2 out of 2 mirrors"],
        ["EXT4-fs (sda2): re-mounted. Opts: errors=remount-ro. Quota mode: none."],
        ["ceph: mds1 hung", "ceph: mds1 came back"],
        ["clocksource: Switched to clocksource tsc"],
        ["nvme nvme0: missing or invalid SUBNQN field.", "nvme nvme0: 32/0/0 default/read/poll queues"],
        [f"{MLX}252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)"],
        [f"{MLX}0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 0000:5d:00.0 "
         "(capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"],
        [f"{MLX}firmware version: 28.39.1002"],
    ],
)  # fmt: skip
def test_what_is_right_or_right_again_is_quiet(messages: list[str]) -> None:
    result = diagnose_text(log(*messages))
    assert (result.verdict.value, result.findings) == ("ok", ())
    assert "file systems" in result.facts["log"]["looked_for"]


AMDGPU = "amdgpu 0000:05:00.0: amdgpu: "


def test_a_reset_of_amdgpu_that_succeeded_is_a_warning() -> None:
    failed, done = AMDGPU + "GPU reset(2) failed", AMDGPU + "GPU reset(3) succeeded!"
    assert found(log(failed)) == [("GPU_LOST", "critical", "GPU 0000:05:00.0")]
    assert found(log(failed, done)) == [
        ("GPU_LOST", "warning", "GPU 0000:05:00.0"),
        ("GPU_LOST", "warning", "AMD GPUs"),
    ]
    others = [f"amdgpu 0000:{bus}:00.0: amdgpu: GPU reset(1) succeeded!" for bus in ("05", "26", "46")]
    assert found(log(*others)) == [("GPU_LOST", "warning", "AMD GPUs")]


@pytest.mark.parametrize(
    "text",
    [
        "[gfxhub0] no-retry page fault (src_id:0 ring:40 vmid:8 pasid:32785)",  # a program's
        "RAS records:12 saved, threshold:256",
        "GPU reset begin!. Source:  2",
    ],
)
def test_what_amdgpu_says_of_programs_and_of_nothing_wrong_is_quiet(text: str) -> None:
    assert found(log(AMDGPU + text)) == []


def test_a_load_of_the_same_start_closes_nothing() -> None:
    """The driver writes that it is loaded after its probe routine."""
    assert ("GPU_XID", "critical", "GPU 0000:b3:00.0") in found(log(LOST, PROBE, LOADED, apart=0.1))
    dates = "".join(f"[Sun Apr 14 12:48:4{n} 2024] {text}\n" for n, text in enumerate((XID, PROBE, LOADED)))
    assert ("GPU_XID", "critical", "GPU 0000:9b:00.0") in found(dates)
    assert found(dates.replace("12:48:42", "13:48:42")) == []


def test_a_port_that_never_had_a_cable_is_quiet_and_one_that_lost_it_is_not() -> None:
    start = f"{MLX}firmware version: 28.39.1002"
    assert found(f"[    2.962781] {UNPLUGGED}\n") == []
    assert found(log(start, UNPLUGGED, apart=1)) == []
    assert found(log(start, PLUGGED, UNPLUGGED, apart=1)) != []
    assert found(log(start, UNPLUGGED, apart=7200)) != []


def test_corrected_errors_are_a_fault_in_a_storm_only() -> None:
    assert found(log(*[MLX + AER] * 12, apart=3600)) == []
    storm = found(log(*[MLX + AER] * 12, apart=0.1))
    assert storm == [("PCIE_AER_ERRORS", "warning", "NIC 0000:5e:00.0")]
    assert found(log(MLX + AER, "aer_ratelimit: 400 callbacks suppressed")) == storm


HEADS = {
    "dmesg": "[  123.456789] {}",
    "caller": "[  123.456789] [   T812] {}",
    "dmesg -T": "[Wed Jun 11 13:14:15 2025] {}",
    "dmesg -H": "[Jun11 13:14] {}",
    "colours": "\x1b[32m[Jun11 13:14] \x1b[0m\x1b[31m{}\x1b[0m",
    "dmesg -d": "[  123.456789 <    0.000010>] {}",
    "dmesg -x": "kern  :err   : [  123.456789] {}",
    "dmesg -x iso": "kern  :err   : 2025-12-08T08:00:02,154044+00:00 {}",
    "dmesg -r": "<3>[  123.456789] {}",
    "kmsg": "3,1200,123456789,-;{}",
    "short": "Jun 11 13:14:15 n17 kernel: {}",
    "short-precise": "Jun 11 13:14:15.123456 n17 kernel: {}",
    "short-iso": "2025-06-11T13:14:15+0000 n17 kernel: {}",
    "short-full": "Wed 2025-06-11 13:14:15 UTC n17 kernel: {}",
    "short-monotonic": "[  123.456789] n17 kernel: {}",
    "short-unix": "1749640455.123456 n17 kernel: {}",
    "syslog": "Jun 11 13:14:15 n17 kernel: [  123.456789] {}",
    "rsyslog": "2025-06-11T13:14:15.123456+00:00 n17 kernel: [  123.456789] {}",
    "netconsole": "2025-03-15 04:44:02 192.0.2.41 [  123.456789] {}",
    "pdsh": "n17: [  123.456789] {}",
    "grep": "/var/log/kern.log:812:Jun 11 13:14:15 n17 kernel: {}",
    "none": "{}",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_each_head_is_taken_off(head: str) -> None:
    text = "".join(head.format(each) + "\n" for each in (XID, INIT))
    result = diagnose_text(text)
    assert [file.kind for file in result.files] == ["kernel log"]
    assert {each.device for each in result.findings} == {"GPU 0000:9b:00.0", "GPU 0000:81:00.0"}
    assert all(each.evidence.get("host") in (None, "n17", "192.0.2.41") for each in result.findings)


def test_a_journal_as_json_is_read() -> None:
    entries = [
        {"MESSAGE": text, "PRIORITY": "3", "_HOSTNAME": "n17", "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": "17594"}
        for text in (XID, list(INIT.encode()))
    ]
    result = diagnose_text("".join(json.dumps(each) + "\n" for each in entries))
    assert [(each.device, each.evidence["host"]) for each in result.findings] == [
        ("GPU 0000:9b:00.0", "n17"),
        ("GPU 0000:81:00.0", "n17"),
    ]


def test_hosts_of_one_log_are_judged_by_themselves() -> None:
    text = "".join(f"Jun 11 13:14:15 {host} kernel: {INIT}\n" for host in ("n1", "n2"))
    assert [each.device for each in diagnose_text(text).findings] == [
        "GPU 0000:81:00.0 on n1",
        "GPU 0000:81:00.0 on n2",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "<3>[  9.1] NVRM: GPU0 gpuNobodyKnows: it failed in an unknown way",
        "[  9.1] amdgpu 0000:05:00.0: amdgpu: Failed to do a new thing",
        "[  9.1] XFS (dm-1): a fatal thing that is new",
    ],
)
def test_an_error_that_no_rule_knows_is_unknown_and_shown(line: str) -> None:
    result = diagnose_text(BOOT + line + "\n")
    assert result.verdict.value == "unknown"
    assert line.split("] ", 1)[1] in result.files[0].unknown


HEALTHY = (
    "mce: [Firmware Bug]: Ignoring invalid MCx bank",
    "nvme nvme1: Failed to get ANA log: 16386",
    "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:808:(pid 902): MODIFY_CONG_STATUS(0x823) op_mod(0x1) failed, status bad",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
    "[drm:nv_drm_register_drm_device [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00001800] Failed to register device",
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: 0 @ gpu.c:12",
    "LustreError: 11-0: fs-MDT0000-mdc-ff: operation mds_connect to node 10.0.0.1@o2ib failed: rc = -11",
    "nvidia-modeset: ERROR: GPU:0: Failed to query display engine channel state",
)


@pytest.mark.parametrize("level", ["err  ", "warn "])
def test_errors_that_healthy_machines_log_are_ok(level: str) -> None:
    assert diagnose_text("".join(f"kern  :{level}: [    5.1] {line}\n" for line in HEALTHY)).verdict.value == "ok"


def test_a_kill_is_critical_for_a_job_and_a_warning_for_another_program() -> None:
    def severity(cgroup: str, program: str) -> str:
        oom = (
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={cgroup},task_memcg=/x,task=x,pid=81,uid=0"
        )
        (one,) = found(log(oom, f"Memory cgroup out of memory: Killed process 81 ({program}) total-vm:9kB"))
        return one[1]

    assert severity("/slurm/uid_1/job_9", "mytool") == "critical"
    assert severity("/kubepods.slice/pod1", "python3") == "critical"
    assert severity("/user.slice/user-1.slice", "ipykernel_launc") == "warning"
    assert severity("/system.slice/redis.service", "redis-server") == "warning"


def test_a_panic_names_the_module_of_its_trace() -> None:
    text = log(
        "BUG: unable to handle page fault for address: ffffb1d94a2e1000",
        "Workqueue: events mlx5_work [mlx5_core]",
        " mlx5_work+0x1a2/0x3f0 [mlx5_core]",
        "Kernel panic - not syncing: Fatal exception",
    )
    (one,) = diagnose_text(text).findings
    assert one.code == "KERNEL_FAULT" and "mlx5_core" in one.summary and one.evidence["trace"]


@given(
    st.lists(
        st.sampled_from([LOST, MISMATCH, PROBE, INIT, XID, GONE, UNPLUGGED, LOADED, BACK, PLUGGED])
        | st.text(max_size=40),
        max_size=20,
    ),
    st.sampled_from(list(HEADS.values())),
    st.integers(0, 200),
)
def test_any_log_cut_anywhere_is_judged(messages: list[str], head: str, cut: int) -> None:
    text = BOOT + "".join(head.replace("{}", each) + "\n" for each in messages)
    for each in diagnose_text(text[cut:]).findings:
        assert each.summary and each.fix.text


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:05:00.0: amdgpu: " + "XGMI " * 2000,
        "habanalabs hl1:" + ":ECC" * 2000,
        "mlx5_core 0000:05:00.0: " + "probe_one:" * 700,
        "NVRM: API mismatch: " + "version 1.1 " * 700,
        "BTRFS " + "(device " * 900,
    ],
)
def test_long_lines_that_nearly_match_are_judged(line: str) -> None:
    """A pattern that tries again at each place would take minutes for these."""
    assert diagnose_text(log(*[line] * 50)).files[0].kind == "kernel log"


ASSERTION = "NVRM: nvAssertFailedNoLog: Assertion failed: expectedFunc == pHistoryEntry->function @ kernel_gsp.c:2059"


def test_an_assertion_of_the_driver_is_evidence_beside_a_failure_and_quiet_alone() -> None:
    alone = diagnose_text(log(ASSERTION, ASSERTION))
    assert (alone.verdict.value, alone.findings, alone.facts["log"]["driver_assertions"]) == ("ok", (), 2)
    (near,) = diagnose_text(log(ASSERTION, XID, apart=1)).findings
    assert near.evidence["driver_assertions"] == [ASSERTION]
    (far,) = diagnose_text(log(ASSERTION, XID, apart=3600)).findings
    assert "driver_assertions" not in far.evidence
