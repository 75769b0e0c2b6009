"""`laggard diagnose`: nccl-tests in its forms, and lspci without registers."""

from __future__ import annotations

import pytest
from support.diagnosed import diagnose_text

Rows = list[tuple[str, str, str]]


def found(text: str) -> Rows:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


NEW = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
OLD = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
RANK = "#  Rank {0:2} Group  0 Pid 300{0} on {1} device  {0} [0x10] NVIDIA H200\n"
NEW_ROW = "  8388608  2097152  float  sum  -1  141.02  {1}  {1}  {0}  140.55  {1}  {1}  {0}\n"
OLD_ROW = "  32768  8192  float  sum  34.10  0.96  1.44  {0}  34.10  0.96  1.44  {0}\n"
NO_REDOP = "  32768  8192  float  34.10  0.96  1.44  {0}  34.10  0.96  1.44  {0}\n"
TOGETHER = RANK.format(0, "n1") + RANK.format(1, "n2")
HANG = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-03-04T01:00:00 DUE TO TIME LIMIT ***\n"
SOCKET = "n1:610:640 [0] NCCL INFO Using network Socket\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NEW + NEW_ROW.format(131072, 7.44), [("RING_FAILED", "critical", "nccl-tests")]),
        (OLD + OLD_ROW.format("4e+00"), [("RING_FAILED", "critical", "nccl-tests")]),
        (OLD + OLD_ROW.format("5e-07"), []),
        (OLD + NO_REDOP.format("0e+00"), []),
        (OLD + OLD_ROW.format("2e-01") + "# Out of bounds values : 2 FAILED\n",
         [("RING_FAILED", "critical", "nccl-tests")]),
        (TOGETHER + NEW + NEW_ROW.format(0, 7.44) + "# Out of bounds values : 0 OK\n", []),
        (TOGETHER + NEW + NEW_ROW.format("N/A", 7.44), []),
        ((RANK.format(0, "n1") + NEW + NEW_ROW.format(0, "0.00")) * 2,
         [("TEST_MEASURED_NOTHING", "warning", "nccl-tests")]),
        (TOGETHER + SOCKET + NEW + NEW_ROW.format(0, 7.44), [("TCP_FALLBACK", "warning", "NCCL on n1")]),
        (RANK.format(0, "n1") + RANK.format(1, "n1") + SOCKET + NEW + NEW_ROW.format(0, 7.44), []),
    ],
)  # fmt: skip
def test_nccl_tests(text: str, expected: Rows) -> None:
    assert found(text) == expected


def test_a_test_that_printed_no_row_hung_only_where_something_stopped_it() -> None:
    assert found(TOGETHER + NEW + HANG)[0] == ("JOB_COLLECTIVE_TIMEOUT", "critical", "nccl-tests")
    assert "before it measured anything" in diagnose_text(TOGETHER + NEW).files[0].unknown
    assert "JOB_COLLECTIVE_TIMEOUT" not in [code for code, _, _ in found(TOGETHER + NEW + "NCCL WARN x\n" + HANG)]


GPU = "{}:00.0 3D controller: NVIDIA Corporation {} (rev {})\n"
BRIDGE = (
    "{}:00.0 PCI bridge: {} (rev b0) (prog-if 00 [Normal decode])\n\tBus: primary=17, secondary=18, subordinate=19\n"
    "\tCapabilities: [60] Express (v2) Downstream Port (Slot+), MSI 00\n"
    "\tCapabilities: [f24 v1] Access Control Services\n"
    "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+\n"
    "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{} CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
)
SWITCH, GUEST = "Broadcom / LSI PEX890xx PCIe Gen 5 Switch", "Red Hat, Inc. QEMU PCIe Root port"
H100 = "GH100 [H100 SXM5 80GB]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root@n1:~# lspci\n" + GPU.format("01", "GA102GL [A40]", "a1") + GPU.format("81", "GA102GL [A40]", "ff"),
         [("GPU_LOST", "critical", "0000:81:00.0")]),
        ("".join(GPU.format(f"{n}b", H100, "a1") for n in range(7)),
         [("GPU_MISSING", "warning", f"NVIDIA Corporation {H100}")]),
        ("".join(GPU.format(f"{n}b", H100, "a1") for n in range(8)), []),
        ("".join(GPU.format(f"{n}b", "GA102GL [A40]", "a1") for n in range(3)), []),
        (BRIDGE.format("17", SWITCH, "+") + BRIDGE.format("18", SWITCH, "+"),
         [("ACS_ENABLED", "warning", "0000:17:00.0 and 1 more bridges")]),
        (BRIDGE.format("17", SWITCH, "-") + BRIDGE.format("18", SWITCH, "-"), []),
        (BRIDGE.format("17", GUEST, "+") + BRIDGE.format("18", GUEST, "+"), []),
    ],
)  # fmt: skip
def test_lspci(text: str, expected: Rows) -> None:
    assert found(text) == expected


def test_lspci_names_the_host_of_the_prompt() -> None:
    [finding] = diagnose_text("root@n1:~# lspci\n" + GPU.format("01", "A", "a1") + GPU.format("81", "A", "ff")).findings
    assert finding.evidence["host"] == "n1"
