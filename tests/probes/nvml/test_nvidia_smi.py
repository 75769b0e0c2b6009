"""`nvidia-smi -q -x` is parsed into the values that NVML gives; anything else is refused with a reason."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import SHARED

from laggard.cli import main
from laggard.probes.nvml.nvidia_smi import NotNvidiaSmi, parse_nvidia_smi

H100 = SHARED / "data" / "nvidia-smi-q-8xh100.xml.gz"

SMALL = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.183.01</driver_version><gpu id="00000000:9B:00.0">
<product_name>NVIDIA A100-SXM4-80GB</product_name><uuid>GPU-1</uuid><minor_number>3</minor_number>
<persistence_mode>Enabled</persistence_mode><mig_mode><current_mig>Enabled</current_mig></mig_mode>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>
<clocks_throttle_reason_hw_thermal_slowdown>Active</clocks_throttle_reason_hw_thermal_slowdown></clocks_throttle_reasons>
<ecc_errors><volatile><sram_uncorrectable>1</sram_uncorrectable><dram_uncorrectable>2</dram_uncorrectable></volatile>
<aggregate><sram_uncorrectable>N/A</sram_uncorrectable></aggregate></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
<remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>GPU is lost</gpu_temp><gpu_temp_slow_threshold>N/A</gpu_temp_slow_threshold></temperature>
<power_readings><power_limit>400.00 W</power_limit></power_readings>
<processes><process_info><pid>77</pid></process_info></processes></gpu></nvidia_smi_log>"""


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not XML"),
        ("<nvidia_smi_log>", "not XML"),
        ("<lshw/>", "not <nvidia_smi_log>"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>', "entities"),
        ('<!DOCTYPE nvidia_smi_log SYSTEM "x" [ ]><nvidia_smi_log/>', "entities"),
        ("<nvidia_smi_log>&undeclared;</nvidia_smi_log>", "not XML"),
    ],
)
def test_anything_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NotNvidiaSmi, match=reason):
        parse_nvidia_smi(text)


@given(st.text() | st.text(alphabet="<>/&;!gpuid=\"' []N/A0123"), st.integers(0, len(SMALL)), st.integers(0, 40))
def test_damage_never_ends_in_a_traceback(noise: str, at: int, cut: int) -> None:
    for text in (noise, SMALL[:at] + noise + SMALL[at + cut :]):
        with contextlib.suppress(NotNvidiaSmi):
            parsed = parse_nvidia_smi(text)
            assert len(parsed.gpus) <= text.count("<gpu"), "a GPU that is not in the text"


GB200 = """<nvidia_smi_log><driver_version>595.45</driver_version><gpu id="00000000:29:00.0">
<product_name>NVIDIA GB200</product_name><board_part_number>900-2G548-A801-000</board_part_number>
<vbios_version>97.00.B9.00.69</vbios_version><persistence_mode>Enabled</persistence_mode>
<gpu_recovery_action>None</gpu_recovery_action>
<gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
</link_widths></pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
<ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity></volatile>
<aggregate><dram_uncorrectable>0</dram_uncorrectable><sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>
<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending>
<unrepairable_memory>No</unrepairable_memory></ecc_errors>
<remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_unc>0</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>27 C</gpu_temp></temperature>
<gpu_power_readings><current_power_limit>1000.00 W</current_power_limit>
<requested_power_limit>1200.00 W</requested_power_limit><default_power_limit>1200.00 W</default_power_limit>
</gpu_power_readings><max_clocks><sm_clock>2062 MHz</sm_clock><mem_clock>3996 MHz</mem_clock></max_clocks>
<applications_clocks><graphics_clock>Requested functionality has been deprecated</graphics_clock></applications_clocks>
<fabric><state>Completed</state><status>Success</status><health><summary>Healthy</summary><bandwidth>Full</bandwidth>
<route_recovery_in_progress>False</route_recovery_in_progress><route_unhealthy>False</route_unhealthy>
<access_timeout_recovery>False</access_timeout_recovery><incorrect_configuration>N/A</incorrect_configuration>
<partition_assigned>N/A</partition_assigned></health></fabric><processes></processes></gpu></nvidia_smi_log>"""
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


@pytest.mark.parametrize(
    ("old", "new", "code", "severity"),
    [
        ("threshold_exceeded>No", "threshold_exceeded>Yes", "GPU_ECC_UNCORRECTED", "critical"),
        ("unrepairable_memory>No", "unrepairable_memory>Yes", "GPU_ROW_REMAP_FAILED", "critical"),
        ("channel_repair_pending>No", "channel_repair_pending>Yes", "GPU_ROW_REMAP_PENDING", "warning"),
        ("tpc_repair_pending>No", "tpc_repair_pending>Yes", "GPU_ROW_REMAP_PENDING", "warning"),
        ("summary>Healthy", "summary>Unhealthy", "FABRIC_NOT_READY", "critical"),
        ("summary>Healthy", "summary>Limited Capacity", "FABRIC_NOT_READY", "warning"),
        ("bandwidth>Full", "bandwidth>Degraded", "FABRIC_NOT_READY", "critical"),
        ("route_unhealthy>False", "route_unhealthy>True", "FABRIC_NOT_READY", "critical"),
        ("partition_assigned>N/A", "partition_assigned>False", "FABRIC_NOT_READY", "warning"),
        ("incorrect_configuration>N/A", "incorrect_configuration>Insufficient NVLinks", "FABRIC_NOT_READY", "critical"),
        ("action>None", "action>Recover IMEX Domain", "GPU_LOST", "warning"),
        ("action>None", "action>GPU Bus Reset", "GPU_LOST", "critical"),
        ("action>None", "action>Something New", "GPU_LOST", "warning"),
        ("current_power_limit>1200", "current_power_limit>900", "GPU_CLOCKS_LOW", "warning"),
    ],
)
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
