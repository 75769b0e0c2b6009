"""The probes on a real kernel, in a virtual machine: registers of PCI Express ports that are really set, RDMA devices
that really count.

One boot runs every step of inside.py; each test checks some. Slow: about a minute. Where QEMU or a kernel is missing,
the tests are skipped, with a warning.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.paths import REPOSITORY
from support.vm import VmUnavailable, run_in_vm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

INSIDE = Path(__file__).with_name("inside.py")


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    environ = {"PYTHONPATH": str(REPOSITORY / "src"), "PYTHONDONTWRITEBYTECODE": "1", "LAGGARD_STATE_DIR": "/run/state"}
    try:
        result = run_in_vm([sys.executable, str(INSIDE)], environ, timeout_seconds=500)
    except VmUnavailable as error:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(f"NOT TESTED on a real kernel: {error}", stacklevel=1)
        print(f"NOT TESTED on a real kernel: {error}", file=sys.__stderr__)
        pytest.skip(f"no virtual machine: {error}")
    line = next((line for line in result.output.splitlines() if line.startswith("STEPS:")), None)
    assert line, f"the script in the machine ended with {result.status}:\n{result.output[-3000:]}"
    found: dict[str, Any] = json.loads(line.removeprefix("STEPS:"))
    if os.environ.get("LAGGARD_VM_SHOW"):
        print(json.dumps(found, indent=1), file=sys.__stderr__)
    return found


def findings(step: dict[str, Any]) -> list[tuple[str, str]]:
    assert step["report"] and "findings" in step["report"], step
    return [(finding["code"], finding["device"]) for finding in step["report"]["findings"]]


def reason(step: dict[str, Any]) -> str:
    return "; ".join(probe["reason"] for probe in step["report"]["probes"])


def test_all_steps_ran(steps: dict[str, Any]) -> None:
    assert {name: step["error"] for name, step in steps.items() if "error" in step} == {}


@pytest.mark.parametrize("step", ["acs off", "source validation alone", "acs off again", "acs on, above the switch"])
def test_quiet(step: str, steps: dict[str, Any]) -> None:
    assert (findings(steps[step]), steps[step]["status"]) == ([], 0), reason(steps[step])


def test_the_kernel_switches_acs_on_with_the_iommu(steps: dict[str, Any]) -> None:
    found = findings(steps["as the kernel set it"])
    assert found == [("ACS_ENABLED", "0000:00:02.0, 0000:00:03.0")]


def test_lspci_and_sysfs_agree(steps: dict[str, Any]) -> None:
    both = steps["read twice"]
    assert both["lspci"] == both["sysfs"]
    assert both["sysfs"]["0000:00:03.0"][-1] == 0x1D  # the control register
    assert both["sysfs"]["0000:04:00.0"][0] == "0000:03:00.0"


def test_the_other_probes_on_a_real_tree(steps: dict[str, Any]) -> None:
    step = steps["other probes"]
    assert findings(step) == [
        ("PCIE_MAX_READ_REQUEST_LOW", "0000:01:00.0, 0000:04:00.0"),  # QEMU's devices ask for 128 bytes
        ("IOMMU_ENABLED", "iommu"),
    ]
    verdicts = {probe["name"]: probe["verdict"] for probe in step["report"]["probes"]}
    assert verdicts == {
        "iommu": "ok",  # with its warning
        "pcie_links": "ok",
        "pcie_requests": "ok",
        "pcie_errors": "ok",
        "numa": "skipped",
    }


def test_redirection_in_the_registers_is_found(steps: dict[str, Any]) -> None:
    step = steps["acs on"]
    assert findings(step) == [("ACS_ENABLED", "0000:00:03.0")], reason(step)
    (finding,) = step["report"]["findings"]
    assert finding["evidence"]["acs_control"] == "0x1d"
    assert "setpci -s 0000:00:03.0 ECAP_ACS+0x6.w=0000" in finding["fix"]["commands"]


@pytest.mark.parametrize("step", ["acs on, virtual", "acs on, virtual unknown"])
def test_a_virtual_machine_is_not_asked_to_switch_acs_off(step: str, steps: dict[str, Any]) -> None:
    assert findings(steps[step]) == []
    assert steps[step]["report"]["facts"]["acs"]["virtual"] is True


def test_without_root_it_is_unknown(steps: dict[str, Any]) -> None:
    step = steps["acs on, not root"]
    assert (findings(step), step["status"]) == ([], 2)
    assert "only to root" in reason(step)


def test_the_reader_tells_who_is_not_root_the_same(steps: dict[str, Any]) -> None:
    step, as_root = steps["acs on, not root, by the reader"], steps["acs on"]
    assert (findings(step), step["status"]) == (findings(as_root), as_root["status"])
    assert findings(step), reason(step)


def test_a_machine_without_gpu_and_rdma_nic_is_skipped(steps: dict[str, Any]) -> None:
    (probe,) = steps["no endpoint named"]["report"]["probes"]
    assert probe["verdict"] == "skipped", probe


def test_rdma_devices_in_software_are_no_hardware(steps: dict[str, Any]) -> None:
    assert {probe["verdict"] for probe in steps["rdma, live"]["report"]["probes"]} == {"skipped"}
    assert "rxe0" in reason(steps["rdma, live"])


@pytest.mark.parametrize("step", ["rdma", "rdma, after traffic"])
def test_an_active_port_is_quiet(step: str, steps: dict[str, Any]) -> None:
    assert (findings(steps[step]), steps[step]["status"]) == ([], 0), reason(steps[step])


def test_traffic_shows_in_the_kernels_counters(steps: dict[str, Any]) -> None:
    facts = steps["rdma, after traffic"]["report"]["facts"]["rdma_errors"]
    rates = facts["traffic"]["rxe0"]
    assert min(rates["sent_packets_per_second"], rates["received_packets_per_second"]) > 10, facts


def test_a_port_that_goes_down_is_found(steps: dict[str, Any]) -> None:
    step = steps["rdma, eth0 down"]
    assert ("RDMA_PORT_DOWN", "rxe0") in findings(step), (findings(step), reason(step))


def test_a_port_that_is_up_again_is_flapping(steps: dict[str, Any]) -> None:
    step = steps["rdma, eth0 up again"]
    assert findings(step) == [("RDMA_LINK_FLAPPING", "rxe0")], reason(step)
    assert step["status"] == 0, "one loss of the link is a warning"


def test_a_job_over_rdma_that_reads_a_file_over_tcp_has_not_fallen_back(steps: dict[str, Any]) -> None:
    for step in steps["traffic"]["rdma and a file over tcp"]:
        (traffic,) = step["traffic"]
        assert step["findings"] == [] and traffic.get("unknown", "") == "", traffic
        assert traffic["rdma_bytes"] > traffic["tcp_other_bytes"] > 8 << 20, traffic


def test_a_job_that_exchanges_over_tcp_has_fallen_back(steps: dict[str, Any]) -> None:
    first, second = steps["traffic"]["tcp"]
    assert first["findings"] == []
    ((code, device, evidence),) = second["findings"]
    assert (code, device, evidence["nodes"]) == ("TCP_FALLBACK", "job 17", ["10.77.1.1"])
    assert evidence["tcp_bytes_with_the_jobs_nodes"] > 60 << 20 > evidence["rdma_bytes"]


def test_a_quota_of_cgroup_v2_shows_in_a_ranks_cpu_time(steps: dict[str, Any]) -> None:
    wait = steps["cgroup of version 2"]["held back"]["cpu_wait"]
    assert wait["throttled_seconds"] > 0.3 * wait["seconds"] > 0.0, wait  # a fifth of a core is its share


def test_a_rank_that_cgroup_v2_had_killed_for_its_memory(steps: dict[str, Any]) -> None:
    row = steps["cgroup of version 2"]["out of memory"]
    assert (row["state"], row["end"]["signal"], row["end"]["cause"]) == ("died", "SIGKILL", "out_of_memory"), row
    assert row["end"]["kernel"] == "/sys/fs/cgroup/job/memory.events: oom_kill 1", row


def test_its_sibling_that_the_launcher_killed_after_it_did_not_run_out_of_memory(steps: dict[str, Any]) -> None:
    row = steps["cgroup of version 2"]["its sibling"]
    assert row["end"]["signal"] == "SIGKILL" and "cause" not in row["end"], row


def test_a_rank_that_somebody_killed_there_did_not_run_out_of_memory(steps: dict[str, Any]) -> None:
    row = steps["cgroup of version 2"]["killed"]
    assert row["end"]["signal"] == "SIGKILL" and "cause" not in row["end"], row
