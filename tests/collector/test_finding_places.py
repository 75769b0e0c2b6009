"""Which rank a finding of its machine can concern: recorded machines, as their agents report them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from laggard.cli import main
from laggard.collector.node_findings import MAX_GPUS, NO_GPUS, NodeGpus, node_findings
from laggard.locate.job_timings import Place
from laggard.model import Finding, Fix, Report, Severity
from laggard.wire import decode

GPUS = [f"GPU-0000000{index}-5f1e-4c1a-8a6d-2b7c9d1e000{index}" for index in range(8)]
EVERY = set(range(8))


@pytest.mark.parametrize(
    ("name", "code", "own"),
    [
        ("gpu_throttled", "GPU_THROTTLED", {3}),
        ("gpu_too_hot", "GPU_TOO_HOT", {0}),
        ("gpu_ecc", "GPU_ECC_UNCORRECTED", {5}),
        ("gpu_clocks_locked", "GPU_CLOCKS_LOW", {6}),
        ("gpu_off_the_bus_at_start", "GPU_XID", {4}),  # the kernel's log has its PCI address alone
        ("gpu_lost_from_the_start", "GPU_LOST", {2}),  # NVML has no UUID of it
        ("gpu_missing", "GPU_MISSING", {4}),
        ("nvlink_down", "NVLINK_DOWN", None),
        ("pcie_gpu_narrow", "PCIE_LINK_DEGRADED", None),
        ("affinity_one_socket", "CPU_AFFINITY", {4, 5, 6, 7}),  # of the second processor
        ("gpu_persistence_off", "GPU_PERSISTENCE_OFF", EVERY),
        ("governor_powersave", "CPU_GOVERNOR", EVERY),
        ("acs_on", "ACS_ENABLED", EVERY),
        ("gpu_driver_hung", "GPU_DRIVER_HUNG", EVERY),
    ],
)
def test_a_finding_is_of_the_ranks_whose_gpu_it_can_concern(
    name: str, code: str, own: set[int] | None, machine: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["healthcheck", "--host-root", str(machine(name)), "--format", "json"])
    report = decode(capsys.readouterr().out.encode(), Report)
    found = node_findings(report.findings, NodeGpus.of(report.facts))
    places = [found.place(code, gpu) for gpu in GPUS]
    concerned = {index for index, place in enumerate(places) if place is not Place.ELSEWHERE}
    assert code in found.codes and Place.UNKNOWN not in places
    assert concerned == own if own is not None else len(concerned) == 1


def finding(code: str, device: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(code, severity, device, "summary", {}, Fix("fix"), "doc")


FACTS = {
    "gpu_count": {"uuids": {GPUS[i]: {"index": i, "bus_id": f"0000:{i}9:00.0"} for i in range(4)}},
    "numa": {"nodes": {**{f"0000:{i}9:00.0": i // 2 for i in range(4)}, "0000:3a:00.0": 1, "0000:5a:00.0": 2}},
}
TWO_OF_FOUR = NodeGpus.of(FACTS)


@rows("collector/devices")
def test_what_a_device_concerns(device: str, places: str) -> None:
    found = node_findings([finding("SOME", device)], TWO_OF_FOUR)
    assert "".join(found.place("SOME", gpu).name[0].lower() for gpu in GPUS[:4]) == places


def test_where_one_code_is_of_a_gpu_and_of_the_machine_the_machine_counts() -> None:
    both = [finding("SOME", "GPU 1"), finding("SOME", "GPUs"), finding("SOME", "GPU 2")]
    two = [finding("SOME", "GPU 1"), finding("SOME", "GPU 2"), finding("SOME", "GPU 3", Severity.INFO)]
    assert node_findings(both, TWO_OF_FOUR).place("SOME", GPUS[0]) is Place.MACHINE
    assert node_findings(both[::-1], TWO_OF_FOUR).place("SOME", GPUS[0]) is Place.MACHINE
    assert node_findings(two, TWO_OF_FOUR).of_gpus == {"SOME": (GPUS[1], GPUS[2])}


@pytest.mark.parametrize("gpu", [None, "MIG-5f1e", "GPU-of-an-instance"])
def test_of_a_rank_whose_gpu_is_not_listed_nobody_can_say(gpu: str | None) -> None:
    found = node_findings([finding("SOME", "GPU 1"), finding("ALL", "GPUs")], TWO_OF_FOUR)
    assert (found.place("SOME", gpu), found.place("ALL", gpu)) == (Place.UNKNOWN, Place.MACHINE)


def test_an_agent_that_names_no_gpus_leaves_it_open() -> None:
    found = node_findings([finding("SOME", "GPU 1 (0000:19:00.0)")], NO_GPUS)
    assert found.place("SOME", GPUS[1]) is Place.UNKNOWN


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from((GPUS[0], "0000:19:00.0")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("gpu_count", "uuids", "numa", "nodes", "index", "bus_id", GPUS[0], "0000:19:00.0")), inner
        )
    ),
)


@given(st.dictionaries(st.sampled_from(("gpu_count", "numa")), ANYTHING), st.text(max_size=20))
def test_facts_may_be_anything(facts: Mapping[str, Any], device: str) -> None:
    gpus = NodeGpus.of(json.loads(json.dumps(facts)))
    for each in (device, "GPU 1 (0000:19:00.0)", "0000:19:00.0", "node1"):
        found = node_findings([finding("SOME", each)], gpus)
        assert isinstance(found.place("SOME", GPUS[0]), Place)


def test_a_machine_with_more_gpus_than_there_are_is_not_believed() -> None:
    many = {f"GPU-{number}": {"index": number, "bus_id": f"{number}"} for number in range(MAX_GPUS + 1)}
    assert NodeGpus.of({"gpu_count": {"uuids": many}}).uuids == ()
