"""What nvidia-smi -q prints as text; tests/data/texts/nvidia_smi.jsonl has its tables and messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

from laggard.diagnose.gpu_tools.smi_table import read_table
from laggard.model import Severity
from laggard.probes.nvml.nvidia_smi import parse_text, read_log
from laggard.wire.diagnosis import Diagnosis

HEAD = (
    "Fri Apr 11 09:13:02 2025\n"
    "+---------------------------------------------------------------------------------------+\n"
    "| NVIDIA-SMI 535.161.08             Driver Version: 535.161.08     CUDA Version: 12.2   |\n"
    "|-----------------------------------------+----------------------+----------------------+\n"
    "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |\n"
    "|=========================================+======================+======================|\n"
)


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(each.code, each.device) for each in diagnosis.findings if each.severity is not Severity.INFO]


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
        ("Blacklist            : N/A", "Blacklist            : Yes", "GPU_ROW_REMAP_PENDING"),
        ("Brake Slowdown       : Not Active", "Brake Slowdown       : Active", "GPU_THROTTLED"),
        ("Current                   : 16x", "Current                   : 8x", None),  # perhaps the slot has no more
        ("Current                   : 5", "Current                   : 1", "PCIE_LINK_DEGRADED"),
        ("    Persistence Mode                      : Enabled", "    Persistence Mode : ERR!\n    GPU UUID : ERR!\n"
         "    Temperature\n        GPU Current Temp : Unknown Error", "GPU_LOST"),
    ],
)  # fmt: skip
def test_what_nvidia_smi_q_has_beside_the_twins_readings(old: str, new: str, code: str | None) -> None:
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


def test_the_same_finding_of_eight_gpus_is_one() -> None:
    rows = "".join(f"| Warning: GPU {gpu}            | GPU {gpu} row remapping failure   |\n" for gpu in range(8))
    table = (
        "| Diagnostic                | Result                                   |\n"
        "+===========================+==========================================+\n"
        "| Memory                    | Fail - GPUs: 0, 1, 2, 3, 4, 5, 6, 7      |\n"
    )
    (found,) = diagnose_text(table + rows).findings
    assert (found.code, found.device) == ("GPU_ROW_REMAP_FAILED", "GPUs 0-7")
    assert found.summary.endswith("Memory: row remapping failure")
