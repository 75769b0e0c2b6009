"""`nvidia-smi -q -x` is parsed into the values that NVML gives; anything else is refused with a reason."""

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA, SHARED
from support.rows import rows

from laggard.cli import main
from laggard.probes.nvml.nvidia_smi import NotNvidiaSmi, parse_nvidia_smi

H100 = SHARED / "data" / "nvidia-smi-q-8xh100.xml.gz"

SMALL = (DATA / "nvidia_smi" / "a100_with_faults.xml").read_text()


@pytest.mark.skipif(not H100.exists(), reason="the recorded hardware is not here")
def test_eight_real_h100() -> None:
    nvml = parse_nvidia_smi(gzip.decompress(H100.read_bytes()).decode())
    assert nvml.driver_version == "570.86.15" and len(nvml.gpus) == 8
    assert {gpu.name for gpu in nvml.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert [gpu.persistence for gpu in nvml.gpus] == [False] * 8
    first = nvml.gpus[0]
    assert (first.bus_id, first.minor, first.mig) == ("0000:04:00.0", 0, False)
    assert (first.temperature_celsius, first.margin_celsius, first.slowdown_margin_celsius) == (33, 54, -2)
    assert (first.max_sm_mhz, first.application_sm_mhz, first.power_limit_watts) == (1980, 1980, 700.0)
    assert (first.ecc_volatile, first.rows and first.rows.pending, first.recovery_action) == (0, False, 0)
    assert first.fabric is not None and (first.fabric.state, first.fabric.status) == (3, 0)
    assert first.clocks_event_reasons == 0x01 and first.processes == ()


def test_an_older_form_with_faults() -> None:
    (gpu,) = parse_nvidia_smi(SMALL).gpus
    assert (gpu.bus_id, gpu.minor, gpu.mig, gpu.persistence) == ("0000:9b:00.0", 3, True, True)
    assert gpu.clocks_event_reasons == 0x48 and gpu.ecc_volatile == 3 and gpu.ecc_aggregate is None
    assert gpu.rows is not None and gpu.rows.pending and gpu.rows.uncorrectable == 1
    assert gpu.temperature_celsius is None and gpu.errors["temperature_celsius"] == "GPU_IS_LOST"
    assert gpu.errors["slowdown_celsius"] == "NOT_SUPPORTED"
    assert gpu.power_limit_watts == 400.0 and [process.pid for process in gpu.processes or ()] == [77]


@rows("probes/no_nvidia_smi")
def test_anything_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NotNvidiaSmi, match=reason):
        parse_nvidia_smi(text)


@given(st.text() | st.text(alphabet="<>/&;!gpuid=\"' []N/A0123"), st.integers(0, len(SMALL)), st.integers(0, 40))
def test_damage_never_ends_in_a_traceback(noise: str, at: int, cut: int) -> None:
    for text in (noise, SMALL[:at] + noise + SMALL[at + cut :]):
        with contextlib.suppress(NotNvidiaSmi):
            parsed = parse_nvidia_smi(text)
            assert len(parsed.gpus) <= text.count("<gpu"), "a GPU that is not in the text"


GB200 = (DATA / "nvidia_smi" / "gb200.xml").read_text()
"""What driver 595 prints of a GPU in a guest, shortened. Its power is limited by something beside the driver."""


def test_what_newer_drivers_add() -> None:
    (gpu,) = parse_nvidia_smi(GB200).gpus
    assert (gpu.board_part, gpu.vbios) == ("900-2G548-A801-000", "97.00.B9.00.69")
    assert (gpu.power_limit_watts, gpu.enforced_power_limit_watts) == (1200.0, 1000.0)
    assert gpu.errors["application_sm_mhz"] == "DEPRECATED"
    assert (gpu.sram_threshold_exceeded, gpu.unrepairable_memory) == (False, False)
    assert gpu.repair is not None and not gpu.repair.channel and not gpu.repair.tpc
    assert gpu.fabric is not None and gpu.fabric.health_mask == 0xAA and gpu.fabric.health_summary == 1


def test_diagnose_is_quiet_about_healthy_boards_of_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it accuse eight lanes of sixteen in a guest, whose slot is not seen."""
    assert diagnosed(GB200.replace("1000.00", "1200.00"), tmp_path, capsys) == []


@rows("probes/newer_drivers")
def test_diagnose_finds_what_newer_drivers_tell(
    old: str, new: str, code: str, severity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = GB200.replace("1000.00", "1200.00")
    assert old in healthy
    assert diagnosed(healthy.replace(old, new), tmp_path, capsys) == [(code, severity)]


def diagnosed(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """The codes and severities that `laggard diagnose` finds in a file with `text`."""
    path = folder / "smi.xml"
    path.write_text(text)
    main(["diagnose", str(path), "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return [(found["code"], found["severity"]) for found in findings]
