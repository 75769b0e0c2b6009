"""What nvidia-smi prints: tables, messages in their place, `-q` as text, on one machine or many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

from laggard.diagnose.gpu_tools.smi_table import read_table
from laggard.model import Severity
from laggard.probes.nvml.nvidia_smi import parse_text, read_log
from laggard.wire.diagnosis import Diagnosis

RULE = "+-----------------------------------------+----------------------+----------------------+\n"
HEAD = (
    "Fri Apr 11 09:13:02 2025\n"
    "+---------------------------------------------------------------------------------------+\n"
    "| NVIDIA-SMI 535.161.08             Driver Version: 535.161.08     CUDA Version: 12.2   |\n"
    "|-----------------------------------------+----------------------+----------------------+\n"
    "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
    "|=========================================+======================+======================|\n"
)


def rows(index: int, bus: str, name: str = "NVIDIA H100 80GB HBM3", ecc: str = "0", temp: str = "40C") -> str:
    return (
        f"|   {index}  {name:25} On  | 00000000:{bus}:00.0 Off | {ecc:>20} |\n"
        f"| N/A   {temp}    P0              67W / 700W |      1MiB / 81920MiB |      0%      Default |\n"
        f"|                                         |                      |             Disabled |\n{RULE}"
    )


BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")


def table(*indices: int, **changes: str) -> str:
    return HEAD + "".join(rows(number, BUSES[index], **changes) for number, index in enumerate(indices))


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(each.code, each.device) for each in diagnosis.findings if each.severity is not Severity.INFO]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (table(*range(8)), []),
        (table(0, 1), []),
        (HEAD + rows(0, "18", ecc="2"), [("GPU_ECC_UNCORRECTED", "GPU 0 (0000:18:00.0)")]),
        (HEAD + rows(0, "18", ecc="Off", name="NVIDIA GeForce RTX 4090"), []),
        (HEAD + rows(0, "18", ecc="N/A", temp="N/A"), []),
        (HEAD + rows(0, "18", ecc="On"), []),
        (HEAD + rows(0, "18", ecc="ERR!", temp="ERR!"), [("GPU_LOST", "GPU 0 (0000:18:00.0)")]),
        (HEAD + rows(0, "18", temp="97C"), [("GPU_TOO_HOT", "GPU 0 (0000:18:00.0)")]),
        (HEAD + rows(0, "18") + rows(1, "2A") + rows(3, "5D"), [("GPU_MISSING", "GPU 2")]),
        (HEAD + rows(6, "18") + rows(7, "2A"), []),
        (table(*range(7)), [("GPU_MISSING", "GPUs")]),
        (table(*range(7), name="NVIDIA L40S"), []),
        (table(*range(8))[:700], []),
    ],
)
def test_a_table_is_judged(text: str, expected: list[tuple[str, str]]) -> None:
    result = diagnose_text(text)
    assert [file.kind for file in result.files] == ["nvidia-smi"]
    assert found(result) == expected


PARTS = (
    "| MIG devices:                                                                          |\n"
    "|  0    1   0   0  |              37MiB / 40192MiB  | 42      {} |  3   0    2    0    0 |\n"
)


@pytest.mark.parametrize(("errors", "expected"), [("0", []), ("3", ["GPU_ECC_UNCORRECTED"])])
def test_the_parts_of_a_gpu_in_mig_mode_are_judged(errors: str, expected: list[str]) -> None:
    result = diagnose_text(HEAD + rows(0, "18", ecc="On") + PARTS.format(errors))
    assert [code for code, _ in found(result)] == expected


@pytest.mark.parametrize(
    ("text", "code", "device"),
    [
        ("Unable to determine the device handle for GPU0000:B1:00.0: Unknown Error\n", "GPU_LOST", "GPU 0000:b1:00.0"),
        ("Unable to determine the device handle for GPU 0000:B1:00.0: GPU is lost.  Reboot the system to recover this "
         "GPU\n", "GPU_LOST", "GPU 0000:b1:00.0"),
        ("Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error\n", "GPU_LOST",
         "GPU 3 (0000:5f:00.0)"),
        ("Unable to determine the device handle for GPU2: Unknown Error\n", "GPU_LOST", "GPU 2"),
    ],
)  # fmt: skip
def test_a_message_in_place_of_a_table_is_a_finding(text: str, code: str, device: str) -> None:
    """Each form of a device's name; tests/data/rules/smi_messages.jsonl has each message."""
    result = diagnose_text(text)
    assert found(result) == [(code, device)] and result.findings[0].severity is Severity.CRITICAL


def test_versions_that_do_not_match_are_told() -> None:
    result = diagnose_text(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n"
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n"
    )
    evidence = result.findings[0].evidence
    assert (evidence["library_version"], evidence["module_version"]) == ("535.183", "535.161.07")


def test_a_list_of_gpus_is_no_fault() -> None:
    lines = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n}0000001-1c2d)\n" for n in range(8))
    result = diagnose_text(lines)
    assert result.files[0].kind == "nvidia-smi" and not result.findings


def heads(host: str, text: str) -> str:
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "form",
    [heads, lambda host, text: f"---------------\n{host}\n---------------\n{text}",
     lambda host, text: f"{host} | CHANGED | rc=0 >>\n{text}", lambda host, text: f"root@{host}:~# nvidia-smi\n{text}"],
    ids=["pdsh", "clush -b", "ansible", "session"],
)  # fmt: skip
def test_the_node_that_has_one_gpu_less_than_the_others_is_found(form: object) -> None:
    assert callable(form)
    result = diagnose_text(form("gpu-1", table(*range(8))) + form("gpu-2", table(0, 1, 2, 4, 5, 6, 7)))
    missing = [each for each in result.findings if each.device == "GPU 0000:5d:00.0"]
    assert [(each.code, each.evidence["host"]) for each in missing] == [("GPU_MISSING", "gpu-2")]


def test_one_line_a_node_is_enough() -> None:
    lines = "".join(
        f"gpu-{n}: No devices were found\n" if n == 3 else f"gpu-{n}: GPU 0: X (UUID: G)\n" for n in range(9)
    )
    assert [each.evidence["host"] for each in diagnose_text(lines).findings] == ["gpu-3"]


def test_nodes_of_other_kinds_are_not_compared() -> None:
    other = HEAD + "".join(rows(number, f"0{number}", name="NVIDIA L4") for number in range(4))
    assert not diagnose_text(heads("a", table(*range(8))) + heads("b", other)).findings


QUERY = """
==============NVSMI LOG==============

Driver Version                            : 550.90.07

Attached GPUs                             : 1
GPU 00000000:BA:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
    GPU UUID                              : GPU-000ba000-5a1c
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
                Device Max                : 5
                Host Max                  : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
    Utilization
        GPU                               : 99 %
    ECC Errors
        Volatile
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Uncorrectable            : 0
    Retired Pages
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    GPU Recovery Action                   : None
    Temperature
        GPU Current Temp                  : 51 C
    Fabric
        State                             : Completed
        Status                            : Success
"""


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("", "", None),
        ("SEC-DED    : 0", "SEC-DED    : 2", "GPU_ECC_UNCORRECTED"),
        ("Occurred        : No", "Occurred        : Yes", "GPU_ROW_REMAP_FAILED"),
        ("  Pending                           : No", "  Pending                           : Yes",
         "GPU_ROW_REMAP_PENDING"),
        ("Blacklist            : N/A", "Blacklist            : Yes", "GPU_ROW_REMAP_PENDING"),
        ("Thermal Slowdown           : Not Active", "Thermal Slowdown           : Active", "GPU_THROTTLED"),
        ("Brake Slowdown       : Not Active", "Brake Slowdown       : Active", "GPU_THROTTLED"),
        ("Current                   : 16x", "Current                   : 8x", "PCIE_LINK_DEGRADED"),
        ("Current                   : 5", "Current                   : 1", "PCIE_LINK_DEGRADED"),
        ("Completed", "In Progress", "FABRIC_NOT_READY"),
        ("    Retired Pages", "        Aggregate\n            SRAM Threshold Exceeded : Yes\n    Retired Pages",
         "GPU_ECC_UNCORRECTED"),
        ("    Retired Pages", "        TPC Repair Pending : Yes\n    Retired Pages", "GPU_ROW_REMAP_PENDING"),
        ("    Temperature", "    A : Unknown Error\n    B : Unknown Error\n    C : Unknown Error\n    Temperature",
         "GPU_LOST"),
        ("Action                   : None", "Action                   : Reset", "GPU_LOST"),
    ],
)  # fmt: skip
def test_nvidia_smi_q_is_judged_as_its_xml_is(old: str, new: str, code: str | None) -> None:
    result = diagnose_text(QUERY.replace(old, new) if old else QUERY)
    assert [file.kind for file in result.files] == ["nvidia-smi -q"]
    assert found(result) == ([(code, "GPU 0 (0000:ba:00.0)")] if code else [])


def test_a_link_of_an_idle_gpu_or_of_a_guest_is_no_fault() -> None:
    idle = QUERY.replace(": 99 %", ": 0 %").replace("Current                   : 5", "Current                   : 1")
    guest = QUERY.replace("16x", "Unknown").replace("Host Max                  : 5", "Host Max                  : N/A")
    assert not diagnose_text(idle).findings and not diagnose_text(guest).findings


def test_a_gpu_without_a_handle_among_those_of_nvidia_smi_q_is_found() -> None:
    line = "Unable to determine the device handle for GPU 0000:5D:00.0: GPU is lost.  Reboot the system\n"
    assert found(diagnose_text(QUERY + line)) == [("GPU_LOST", "GPU 0000:5d:00.0")]


def test_what_grep_left_of_it_is_read() -> None:
    lines = [line for line in QUERY.splitlines() if line.startswith("GPU 0") or "Uncorrectable" in line]
    result = diagnose_text("\n".join(lines))
    assert [file.kind for file in result.files] == ["nvidia-smi -q"] and not result.findings


@given(st.text(alphabet="GPU 0:.ab|+-\n\t", max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert read_table(HEAD + text).driver_version == "535.161.08"
    assert read_log(parse_text(QUERY + text)).gpus[0].name == "NVIDIA H100 80GB HBM3"


def test_a_text_of_nothing_but_depth_is_read() -> None:
    deep = "GPU 00000000:BA:00.0\n" + "".join(f"{' ' * n}a :\n" for n in range(1, 300)) * 40
    assert len(read_log(parse_text(deep)).gpus) == 1
