"""`laggard diagnose` on kernel logs: deaths, machine checks, links and file servers, and what is none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

BOOT = "[    0.000000] Linux version 5.15.0-113-generic\n[    1.000000] usb 1-1: new device\n"
OOM = (
    "python invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,task=python,pid=81,uid=1000",
    "Memory cgroup out of memory: Killed process 81 (python) total-vm:98kB, anon-rss:77kB, UID:1000 oom_score_adj:0",
)
CORRECTED = "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0)"
UNCORRECTED = "EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1)"
DOWN, UP = (f"mlx5_core 0000:5c:00.0 ens1f0np0: Link {state}" for state in ("down", "up"))
NFS_LOST, NFS_BACK = "nfs: server nas1 not responding, still trying", "nfs: server nas1 OK"


def log(*messages: str) -> str:
    return BOOT + "".join(f"[{second + 100}.000000] {text}\n" for second, text in enumerate(messages))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (OOM, [("JOB_HOST_OUT_OF_MEMORY", "critical", "python")]),
        (
            ["Out of memory: Killed process 9 (pt_main_thread) total-vm:9kB"] * 2,
            [("JOB_HOST_OUT_OF_MEMORY", "critical")],
        ),
        (["python[812]: segfault at 18 ip 00007f sp 00007f error 4 in libtorch.so"], [("JOB_SEGFAULT", "critical")]),
        (["systemd-oomd[1]: segfault at 18 ip 00007f sp 00007f error 4"], []),
        ([UNCORRECTED], [("MACHINE_CHECK", "critical", "CPU_SrcID#1_MC#1_Chan#0_DIMM#0")]),
        (["mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00"], [("MACHINE_CHECK", "critical")]),
        ([CORRECTED] * 10, [("MACHINE_CHECK", "warning", "CPU_SrcID#0_MC#0_Chan#1_DIMM#0")]),
        ([CORRECTED] * 9, []),
        ([CORRECTED.replace("1 CE", "40 CE")], [("MACHINE_CHECK", "warning")]),
        (["EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0"], []),
        (["mce: CPU0: Thermal monitoring enabled (TM1)", "MCE: In-kernel MCE decoding enabled."], []),
        ([DOWN], [("RDMA_NETDEV_DOWN", "warning", "ens1f0np0 (mlx5_core 0000:5c:00.0)")]),
        ([DOWN, UP], []),
        ([DOWN, UP, DOWN, UP], [("RDMA_LINK_FLAPPING", "warning")]),
        (["igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex"], []),
        ([NFS_LOST], [("MOUNT_HUNG", "critical", "NFS server nas1")]),
        ([NFS_LOST, NFS_BACK], []),
    ],
)
def test_a_message_is_a_finding_or_none(messages: list[str], expected: list[tuple[str, ...]]) -> None:
    result = diagnose_text(log(*messages))
    assert [file.kind for file in result.files] == ["kernel log"]
    found = [(each.code, each.severity.value, each.device) for each in result.findings]
    assert len(found) == len(expected)
    assert all(one[: len(other)] == other for one, other in zip(found, expected, strict=True)), found


@given(st.lists(st.sampled_from([*OOM, CORRECTED, UNCORRECTED, DOWN, UP, NFS_LOST, NFS_BACK]) | st.text(), max_size=30))
def test_any_log_is_judged_and_what_is_closed_is_quiet(messages: list[str]) -> None:
    result = diagnose_text(log(*messages, UP, NFS_BACK))
    assert not {each.code for each in result.findings} & {"RDMA_NETDEV_DOWN", "MOUNT_HUNG"}
