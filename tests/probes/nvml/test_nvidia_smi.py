"""`nvidia-smi -q -x` is parsed into the values that NVML gives; anything else is refused with a reason."""

from __future__ import annotations

import contextlib
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import SHARED

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
