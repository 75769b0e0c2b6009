"""`laggard diagnose` on kernel logs of any form; tests/data/texts/kernel.jsonl has faults beside what is right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

from laggard.model import Verdict

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


def log(*messages: str, apart: float = 60.0) -> str:
    """A log as dmesg prints it: the lines after a record's first are indented and have no time."""
    rows = (
        f"[{1000 + place * apart:12.6f}] " + text.replace("\n", "\n" + " " * 15) for place, text in enumerate(messages)
    )
    return BOOT + "".join(f"{row}\n" for row in rows)


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


DOWN, UP = (f"mlx5_core 0000:5c:00.0 ens1f0np0: Link {state}" for state in ("down", "up"))
NFS_LOST, NFS_BACK = "nfs: server nas1 not responding, still trying", "nfs: server nas1 OK"


@given(st.lists(st.sampled_from([INIT, PROBE, DOWN, UP, NFS_LOST, NFS_BACK]) | st.text(), max_size=30))
def test_what_is_closed_is_quiet_after_any_log(messages: list[str]) -> None:
    result = diagnose_text(log(*messages, UP, NFS_BACK))
    assert not {each.code for each in result.findings} & {"RDMA_NETDEV_DOWN", "MOUNT_HUNG"}
    assert "file systems" in result.facts["log"]["looked_for"]


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


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Pool 'local' has encountered an uncorrectable I/O failure and has been suspended.",
        "hfi1 0000:3b:00.0: hfi1_0: unrecoverable hardware error, freezing the device",
        "weka: fatal error: lost quorum, mount /data is dead",
    ],
)
def test_of_an_unknown_driver_what_has_ended_is_not_all_well(line: str) -> None:
    result = diagnose_text(log(line))
    assert (result.verdict, result.findings) == (Verdict.UNKNOWN, ())
    assert line[:40] in result.files[0].unknown


@pytest.mark.parametrize(
    "line",
    [
        r"ACPI Error: Aborting method \_SB.PMI0._GHL due to previous error (AE_NOT_FOUND) (20221020/psparse-529)",
        "a.out[24787]: segfault at 0 ip 00007f8f24185ad8 sp 00007ffebbb6e538 error 4 in libc.so.6[7f8f24044000+156000]",
        "habanalabs 0000:19:00.0: can't derive routing for PCI INT A",
        "usb 1-1: device descriptor read/64, error -71",
        "pci 0000:00:1c.0: BAR 13: failed to assign [io  size 0x1000]",
        "ipmi_si IPI0001:00: Could not set up I/O space",
        "i40e 0000:19:00.0 eno1: NIC Link is Down",
        "systemd-journald[812]: File /var/log/journal/system.journal corrupted or uncleanly shut down, renaming",
    ],
)
def test_what_healthy_machines_log_at_boot_says_nothing(line: str) -> None:
    assert diagnose_text(log(line)).verdict is Verdict.OK
