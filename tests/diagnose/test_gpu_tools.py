"""What dcgmi, nvidia-smi's topology and links, services, AMD's and Intel's tools print."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

from laggard.model import Severity

Expected = list[tuple[str, str, str]]


def found(text: str) -> tuple[str | None, Expected]:
    result = diagnose_text(text)
    rows = [(each.code, each.device, each.severity.value) for each in result.findings]
    return result.files[0].kind, rows


def box(*rows: tuple[str, str], head: tuple[str, str] = ("Diagnostic", "Result"), width: int = 48) -> str:
    rule = f"+{'-' * 27}+{'-' * width}+\n"
    lines = "".join(f"| {name:26}|{value:{width}}|\n" for name, value in rows)
    return f"Successfully ran diagnostic for group.\n{rule}| {head[0]:26}|{' ' + head[1]:{width}}|\n{rule}{lines}{rule}"


PASSED = (("Denylist", " Pass"), ("PCIe", " Pass - All"), ("GPU Memory", " Pass - All"), ("EUD Test", " Skip - All"))
OF_3 = (
    ("PCIe", " Pass - All"),
    ("GPU Memory", " Fail - GPU: 3"),
    ("", " Pass - GPU: 0,1,2"),
    ("Warning", " GPU 3 Found 2231 faulty memory elements on GP"),
    ("", " U 3 Run a field diagnostic on the GPU."),
)
OF_4 = (
    ("software", " Fail"),
    ("", " GPU0: Pass"),
    ("", " GPU2: Fail"),
    ("Warning: GPU2", " GPU 2 had uncorrectable memory errors and row"),
    ("", "  remapping failed."),
    ("", " GPU3: Pass"),
)
INTERNAL = (("pcie", " Fail"), ("Warning", " There was an internal error during the test: "))
THERMAL = (
    ("targeted_power", " Fail"),
    ("", " GPU1: Fail"),
    ("Warning: GPU1", " Thermal violations totaling 3 seconds"),
)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (PASSED, []),
        (OF_3, [("GPU_ECC_UNCORRECTED", "GPU 3", "critical")]),
        (OF_4, [("GPU_ROW_REMAP_FAILED", "GPU 2", "critical")]),
        (INTERNAL, [("GPU_DIAG_FAILED", "the GPUs", "warning")]),
        (THERMAL, [("GPU_TOO_HOT", "GPU 1", "critical")]),
        ((("Memory Bandwidth", " Fail - GPU: 0, 5"),), [("GPU_DIAG_FAILED", "GPU 0", "critical"),
                                                       ("GPU_DIAG_FAILED", "GPU 5", "critical")]),
    ],
    ids=["passed", "version 3", "version 4", "internal", "thermal", "two"],
)  # fmt: skip
def test_dcgmi_diag_as_text(rows: tuple[tuple[str, str], ...], expected: Expected) -> None:
    assert found(box(*rows)) == ("dcgmi diag", expected)


def test_a_word_that_the_table_cuts_is_joined() -> None:
    assert "on GPU 3 Run a field" in diagnose_text(box(*OF_3)).findings[0].summary


def as_json(name: str, *results: dict[str, object]) -> str:
    return json.dumps({name: {"test_categories": [{"category": "X", "tests": [{"name": "pcie", "results": results}]}]}})


GENERATION = "GPU 6 is running at PCI link generation 1, which is below the minimum allowed link generation of 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (as_json("DCGM GPU Diagnostic", {"gpu_ids": "0,1", "status": "PASS"}), []),
        (as_json("DCGM GPU Diagnostic", {"gpu_ids": "6", "status": "FAIL", "warnings": GENERATION}),
         [("PCIE_LINK_DEGRADED", "GPU 6", "critical")]),
        (as_json("DCGM GPU Diagnostic", {"gpu_id": "6", "status": "Fail", "warnings": [{"warning": GENERATION}]}),
         [("PCIE_LINK_DEGRADED", "GPU 6", "critical")]),
        (as_json("DCGM Diagnostic", {"entity_group": "GPU", "entity_id": 4, "status": "Fail",
                                     "warnings": [{"warning": "GPU 4's NvLink link 7 is currently down"}]}),
         [("NVLINK_DOWN", "GPU 4", "critical")]),
        (as_json("DCGM Diagnostic", {"entity_group": "GPU", "entity_id": 4, "status": "Skip"}), []),
    ],
    ids=["passed", "version 2", "version 3", "version 4", "skipped"],
)  # fmt: skip
def test_dcgmi_diag_as_json(text: str, expected: Expected) -> None:
    assert found(text) == ("dcgmi diag -j", expected)


def test_json_that_is_cut_is_unknown() -> None:
    text = as_json("DCGM Diagnostic", {"entity_id": 4, "status": "Fail"})[:-8]
    assert "cut" in diagnose_text(text).files[0].unknown


HEALTH = (
    ("Overall Health", " Failure"),
    ("GPU", ""),
    ("-> 5", " Failure"),
    ("   -> Errors", ""),
    ("      -> Memory system", " Failure"),
    ("", " A DBE has been detected in GPU 5."),
    ("      -> PCIe system", " Warning"),
    ("", " Detected more than 8 PCIe replays per minute"),
)


SWITCH_HEALTH = (
    ("Overall Health", " Failure"),
    ("Switch", ""),
    ("-> 2", " Failure"),
    ("   -> Errors", ""),
    ("      -> NvSwitch F system", " Failure"),
    ("", " Detected a fatal error of this switch"),
)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((("Overall Health", " Healthy"),), []),
        (HEALTH, [("GPU_ECC_UNCORRECTED", "GPU 5", "critical"), ("PCIE_LINK_DEGRADED", "GPU 5", "warning")]),
        (HEALTH[:1], [("GPU_DIAG_FAILED", "the GPUs", "critical")]),
        (SWITCH_HEALTH, [("GPU_DIAG_FAILED", "Switch 2", "critical")]),
    ],
)
def test_dcgmi_health(rows: tuple[tuple[str, str], ...], expected: Expected) -> None:
    assert found(box(*rows, head=("Health Monitor Report", ""))) == ("dcgmi health", expected)


def topology(rows: list[list[str]]) -> str:
    head = "\t".join(["", *(f"GPU{n}" for n in range(len(rows))), "CPU Affinity"])
    return head + "\n" + "".join(f"GPU{n}\t" + "\t".join([*row, "0-47"]) + "\n" for n, row in enumerate(rows))


def mesh(count: int, links: int, lost: int | None = None, left: int = 0) -> str:
    def cell(one: int, other: int) -> str:
        number = left if lost in (one, other) else links
        return " X " if one == other else f"NV{number}" if number else "SYS"

    return topology([[cell(one, other) for other in range(count)] for one in range(count)])


def pairs(count: int, joined: int) -> str:
    def cell(one: int, other: int) -> str:
        return " X " if one == other else "NV12" if one // 2 == other // 2 and one // 2 < joined else "SYS"

    return topology([[cell(one, other) for other in range(count)] for one in range(count)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (mesh(8, 18), []),
        (mesh(8, 18, lost=5), [("NVLINK_DOWN", "GPU 5", "critical")]),
        (mesh(8, 18, lost=2, left=16), [("NVLINK_DOWN", "GPU 2", "critical")]),
        (mesh(8, 0), []),
        (mesh(2, 4), []),
        (pairs(8, 4), []),
        (pairs(8, 1), []),
        (pairs(8, 3), [("NVLINK_DOWN", "GPU 6", "warning"), ("NVLINK_DOWN", "GPU 7", "warning")]),
        (mesh(8, 18, lost=5).replace("\t", "  "), [("NVLINK_DOWN", "GPU 5", "critical")]),
    ],
)
def test_topologies(text: str, expected: Expected) -> None:
    assert found(text) == ("nvidia-smi topo -m", expected)


def test_a_topology_whose_rows_are_cut_is_not_judged() -> None:
    assert not diagnose_text(mesh(8, 18, lost=5)[:200]).findings


def links(count: int, *down: int, number: int = 0, name: str = "NVIDIA H100 80GB HBM3") -> str:
    rows = "".join(f"\t Link {n}: {'<inactive>' if n in down else '26.562 GB/s'}\n" for n in range(count))
    return f"GPU {number}: {name} (UUID: GPU-5a1b{number})\n{rows}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("".join(links(18, number=n) for n in range(4)), []),
        (links(18) + links(18, 2, 3, number=1) + links(18, number=2), [("NVLINK_DOWN", "GPU 1", "critical")]),
        ("".join(links(12, 4, 5, 6, number=n) for n in range(4)), []),
        (links(4, 0, 1, 2, 3), []),
        (links(18, 9), [("NVLINK_DOWN", "GPU 0", "critical")]),
    ],
)
def test_links(text: str, expected: Expected) -> None:
    assert found(text) == ("nvidia-smi nvlink", expected)


def counters(**counts: int) -> str:
    named = {"Replay": 0, "Recovery": 0, "CRC": 0} | counts
    rows = "".join(f"\t Link {n}: {name} Errors: {count}\n" for n in range(3) for name, count in named.items())
    return f"GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-7a1b)\n{rows}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counters(), []),
        (counters(Replay=1, CRC=3), []),
        (counters(Recovery=4), [("NVLINK_ERRORS", "GPU 6", "warning")]),
        (counters(Replay=300), [("NVLINK_ERRORS", "GPU 6", "warning")]),
        (counters(Symbol=70, Effective=9), []),
    ],
)
def test_counters_of_links(text: str, expected: Expected) -> None:
    assert found(text) == ("nvidia-smi nvlink", expected)


def status(unit: str, active: str, *lines: str) -> str:
    said = "".join(f"Mar 04 06:52:11 dgx-a1 nv[2913]: {line}\n" for line in lines)
    return f"● {unit}.service - A service\n     Loaded: loaded (/lib/x)\n     Active: {active}\n\n{said}"


FAILED = "failed (Result: exit-code) since Tue"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (status("nvidia-fabricmanager", "active (running) since Mon", "Failed to nothing"), []),
        (status("nvidia-fabricmanager", "inactive (dead)"), [("FABRIC_MANAGER_DOWN", "the fabric manager", "warning")]),
        (status("nvidia-fabricmanager", FAILED, "NV_WARN_NOTHING_TO_DO"), []),
        (status("nvidia-persistenced", FAILED, "Failed to query NVIDIA devices."),
         [("GPU_DRIVER_FAILED", "nvidia-persistenced", "critical")]),
    ],
)  # fmt: skip
def test_services(text: str, expected: Expected) -> None:
    assert found(text) == ("systemctl status", expected)


def test_versions_of_the_fabric_manager_that_do_not_match_are_told() -> None:
    line = "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.144.03."
    (only,) = diagnose_text(status("nvidia-fabricmanager", FAILED, line)).findings
    assert "550.127.05 does not match the driver's 550.144.03" in only.summary and only.evidence["host"] == "dgx-a1"


AMD_TABLE = (
    "+------------------------------------------------------------------------------+\n"
    "| AMD-SMI 26.0.0+37d158ab      amdgpu version: 6.14.14  ROCm version: 7.0.0    |\n"
    "|=====================================+========================================|\n"
    "| 0000:05:00.0    AMD Instinct MI300X | 0 %      41 °C   {}           141/750 W |\n"
    "|   3       0       0        SPX/NPS1 | 0 %        N/A           285/196592 MB |\n"
)
AMD_TEXT = (
    "GPU: 3\n    BUS:\n        BDF: 0000:05:00.0\n        MAX_PCIE_WIDTH: 16\n    PCIE:\n        WIDTH: {width}\n"
    "    ECC:\n        TOTAL_CORRECTABLE_COUNT: 41\n        TOTAL_UNCORRECTABLE_COUNT: {errors}\n"
    "    RETIRED: No bad pages found.\n    PENDING:{pending}\n    UN_RES: No bad pages found.\n"
)
CPER = (
    "timestamp            gpu_id  severity             file_name         list of afids\n"
    "2000/06/27 10:45:13  3       {}                fatal-1.cper      {}\n"
)


def throttled(reason: str) -> dict[str, object]:
    """Of `amd-smi metric --throttle --json`: clocks that are lowered for one reason."""
    reasons = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
    status = {f"{each}_violation_status": "ACTIVE" if each == reason else "NOT ACTIVE" for each in reasons}
    return {"accumulation_counter": 7, **status, f"{reason}_violation_activity": {"value": 80, "unit": "%"}}


NONE = {"width": "16", "errors": "0", "pending": " No bad pages found."}
PAGE = "\n        PAGE_ADDRESS: 0x1a2f0c40\n        PAGE_SIZE: 4096\n        STATUS: PENDING"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (AMD_TABLE.format(0), []),
        (AMD_TABLE.format(3), ["GPU_ECC_UNCORRECTED"]),
        (AMD_TABLE.format("N/A"), []),
        (AMD_TEXT.format(**NONE), []),
        (AMD_TEXT.format(**NONE | {"errors": "2"}), ["GPU_ECC_UNCORRECTED"]),
        (AMD_TEXT.format(**NONE | {"errors": "N/A", "width": "N/A"}), []),
        (AMD_TEXT.format(**NONE | {"width": "8"}), ["PCIE_LINK_DEGRADED"]),
        (AMD_TEXT.format(**NONE | {"pending": PAGE}), ["GPU_ROW_REMAP_PENDING"]),
        (json.dumps([{"gpu": 3, "bus": {"bdf": "0000:05:00.0"}, "ecc": {"total_uncorrectable_count": 5}}]),
         ["GPU_ECC_UNCORRECTED"]),
        (json.dumps({"gpu_data": [{"gpu": 3, "ecc": {"total_uncorrectable_count": 0}}]}), []),
        (json.dumps([{"gpu": 3, "retired": {"page_address": 437259328, "page_size": 4096, "status": "RESERVED"},
                      "pending": [{"page_address": 437259329, "page_size": 4096, "status": "PENDING"}],
                      "un_res": "No bad pages found."}]), ["GPU_ROW_REMAP_PENDING"]),
        (json.dumps({"gpu_data": [{"gpu": 3, "throttle": throttled("ppt")}]}), []),
        (json.dumps({"gpu_data": [{"gpu": 3, "throttle": throttled("hbm_thermal")}]}), ["GPU_THROTTLED"]),
        (json.dumps({"xgmi_metric": [[{"gpu": 3, "bdf": "0000:05:00.0", "link_metrics": {"links": []}}]],
                     "link_status": [{"gpu": 3, "bdf": "0000:05:00.0", "link_status": ["SELF", "U/D", "X"]}]}),
         ["NVLINK_DOWN"]),
        (json.dumps({"link_status": [{"gpu": 3, "bdf": "0000:05:00.0", "link_status": ["SELF", "U/U", "X"]}]}), []),
        (CPER.format("FATAL", "30"), ["GPU_XID"]),
        (CPER.format("FATAL", "18 19"), ["NVLINK_ERRORS", "GPU_ROW_REMAP_FAILED"]),
        (CPER.format("NONFATAL-UNCORRECTED", "22"), ["GPU_ECC_UNCORRECTED"]),
        (CPER.format("NONFATAL-CORRECTED", "24"), []),
        (CPER.format("FATAL", "9999"), ["GPU_XID"]),
        ("timestamp            gpu_id  severity\n2000/06/27 10:45:13  3       FATAL\n", ["GPU_XID"]),
    ],
)  # fmt: skip
def test_amd_smi(text: str, codes: list[str]) -> None:
    kind, rows = found(text)
    assert kind == "amd-smi" and [code for code, _, _ in rows] == codes
    named = "GPU 3 (0000:05:00.0)" if "0000:05:00.0" in text else "GPU 3"
    assert all(device == named for _, device, _ in rows)


ROCM = (
    "=================== ROCm System Management Interface ===================\n"
    "============================= Concise Info =============================\n"
    "GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%\n"
    "0    35.0c           41.0W   800Mhz  1600Mhz 0%   auto  560.0W  0%     0%\n"
    "{}\n"
    "======================== End of ROCm SMI Log ===========================\n"
)


@pytest.mark.parametrize(
    ("row", "codes"),
    [
        ("1    36.0c           42.0W   800Mhz  1600Mhz 0%   auto  560.0W  0%     0%", []),
        ("1    36.0c           42.0W   800Mhz  1600Mhz N/A  auto  N/A     0%     0%", []),
        ("1    N/A             N/A     None    None    0%   unknown  N/A  0%    N/A", ["GPU_LOST"]),
        ("1    N/A             N/A     No", []),
    ],
)
def test_rocm_smi(row: str, codes: list[str]) -> None:
    kind, rows = found(ROCM.format(row))
    assert kind == "rocm-smi" and [code for code, _, _ in rows] == codes


HL = (
    "+-----------------------------------------------------------------------------+\n"
    "| HL-SMI Version:                              hl-1.18.0-fw-53.1.1.1          |\n"
    "| AIP  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
    "|===============================+======================+======================|\n"
    "|   0  HL-225              N/A  | 0000:19:00.0     N/A |                   {}  |\n"
    "| N/A   24C   N/A    88W / 600W |    768MiB / 98304MiB |     0%           N/A |\n"
    "|-------------------------------+----------------------+----------------------+\n"
)


@pytest.mark.parametrize(
    ("ecc", "codes"), [("0", []), ("2", ["GPU_ECC_UNCORRECTED"]), ("N/A", []), ("ERR!", ["GPU_LOST"])]
)
def test_hl_smi(ecc: str, codes: list[str]) -> None:
    kind, rows = found(HL.format(ecc))
    assert kind == "hl-smi" and [code for code, _, _ in rows] == codes


@pytest.mark.parametrize("text", [box(*OF_3), HL.format(2), links(18, 9), counters(Recovery=4)])
def test_what_stands_in_a_jobs_log_is_left_to_the_job(text: str) -> None:
    log = text + "".join(f"[rank{n % 8}]: step {n} loss {3 - n / 100:.2f}\n" for n in range(200))
    assert diagnose_text(log).files[0].kind == "job log"


@given(st.sampled_from([box(*OF_3), box(*HEALTH), mesh(4, 2), links(4), AMD_TABLE.format(1), ROCM, HL]),
       st.integers(0, 900), st.text(alphabet="|+-: GPU0NV\n\t%", max_size=80))  # fmt: skip
def test_a_text_that_is_cut_or_strange_is_read(text: str, end: int, rest: str) -> None:
    result = diagnose_text(text[:end] + rest)
    assert all(each.severity in Severity for each in result.findings)


CARD = {"Device Name": "AMD Instinct MI300X", **{f"reading {number}": str(number) for number in range(8)}}


@pytest.mark.parametrize(
    ("third", "codes"),
    [
        (CARD, []),
        (CARD | {"XGMI Error count": "0"}, []),
        (CARD | {"XGMI Error count": "2"}, ["NVLINK_ERRORS"]),
        ({"Device Name": "N/A"}, ["GPU_LOST"]),
    ],
)
def test_the_json_of_rocm_smi(third: dict[str, str], codes: list[str]) -> None:
    kind, rows = found(json.dumps({"card0": CARD, "card1": CARD, "card2": third, "system": {"Driver version": "6.8"}}))
    assert kind == "rocm-smi" and [row[:2] for row in rows] == [(code, "GPU 2") for code in codes]


def test_the_xgmi_errors_of_rocm_smi() -> None:
    lines = "GPU[0]\t\t: XGMI Error count: 0 (No errors detected since last read)\n"
    lines += "GPU[3]\t\t: XGMI Error count: 1 (Single error detected since last read)\n"
    kind, rows = found(ROCM.splitlines()[0] + "\n" + lines)
    assert (kind, rows) == ("rocm-smi", [("NVLINK_ERRORS", "GPU 3", "warning")])


XGMI_METRICS = """LINK METRIC TABLE:
       bdf          bit_rate max_bandwidth link_type GPU0         GPU1
GPU0   0000:0c:00.0 32 Gb/s  512 Gb/s      XGMI
 Read                                                N/A          2 KB
 Write                                               N/A          1 KB
GPU1   0000:22:00.0 32 Gb/s  512 Gb/s      XGMI
 Read                                                1 KB         N/A
 Write                                               1 KB         N/A
"""


def xgmi(*statuses: str) -> str:
    rows = "".join(f"GPU{number}   0000:0{number}:00.0  {status}\n" for number, status in enumerate(statuses))
    legend = "Legend:\n  SELF = Current GPU\n  N/A = Not supported\n  U / D / X = Link is Up / Down / Disabled\n"
    return f"{XGMI_METRICS}\nXGMI LINK STATUS:\n       bdf           GPU0          GPU1\n{rows}\n\n{legend}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (XGMI_METRICS, []),
        (xgmi("SELF          U/U           ", "U/U           SELF"), []),
        (xgmi("SELF          U/X           ", "N/A           SELF"), []),
        (
            xgmi("SELF          U/D           ", "D/U           SELF")[:-40],
            ["GPU 0 (0000:0c:00.0)", "GPU 1 (0000:22:00.0)"],
        ),
        ("LINK METRIC TABLE:\n" + "GPU0 " * 4000, []),
    ],
)
def test_amd_smi_xgmi(text: str, expected: list[str]) -> None:
    kind, found_here = found(text)
    assert (kind, [each[:2] for each in found_here]) == ("amd-smi", [("NVLINK_DOWN", device) for device in expected])
