"""The probes that load the GPUs: their rules on values, and the probes on the CPU, with and without injected faults."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.later import Later
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch
from support.paths import MACHINES
from support.rows import rows

from laggard.model import Finding, Severity
from laggard.probes.active.copy import copy_in_memory, copy_there_and_back, pinned_near
from laggard.probes.active.matmul import LARGEST, RATE_TEST, SIZES, multiply, operands
from laggard.probes.active.measuring import devices as devices_module
from laggard.probes.active.measuring.devices import ComputeDevice, measure_all
from laggard.probes.active.measuring.rates import ActiveThresholds, Measurement, NotMeasured, judge, median
from laggard.probes.active_registry import ACTIVE_PROBES
from laggard.probes.choose import choose_probes
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu, GpuProcess
from laggard.probes.profiles import Profile

pytestmark = pytest.mark.torch

torch = Later("torch")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Threads that wait for each other take minutes for a product where other processes hold the cores."""
    torch.set_num_threads(1)


ACTIVE_NAMES = {probe.name for probe in ACTIVE_PROBES}
CPU = ComputeDevice("CPU run 0", "CPU", "cpu")
RATE = 7e14


def gpus(*rates: float, model: str = "H100", wrong: int = 0) -> list[Measurement]:
    return [Measurement(f"GPU {index}", model, rate, 1000, wrong) for index, rate in enumerate(rates)]


def findings(measured: Sequence[Measurement], **thresholds: Any) -> list[Finding]:
    """Returns the findings without the Unknown that may end them."""
    found = []
    with contextlib.suppress(Unknown):
        found.extend(judge(measured, (), RATE_TEST, ActiveThresholds(**thresholds)))
    return found


def reason(measured: Sequence[Measurement], *not_measured: str, **thresholds: Any) -> str:
    with pytest.raises(Unknown) as unknown:
        list(judge(measured, [*map(NotMeasured, not_measured)], RATE_TEST, ActiveThresholds(**thresholds)))
    return str(unknown.value)


# --- rules on values ----------------------------------------------------------------------------------------------


def test_gpus_that_differ_like_healthy_ones_are_quiet() -> None:
    assert findings(gpus(*(RATE * (1 - step / 100) for step in range(8)))) == []


@pytest.mark.parametrize(("share", "severity"), [(0.8, Severity.WARNING), (0.5, Severity.CRITICAL)])
def test_a_slow_gpu_is_named(share: float, severity: Severity) -> None:
    (finding,) = list(judge(gpus(*[RATE] * 7, share * RATE), [], RATE_TEST, ActiveThresholds()))
    assert (finding.code, finding.device, finding.severity) == ("GPU_SLOW", "GPU 7", severity)
    assert finding.evidence["ratio"] == share and finding.evidence["expected_per_second"] == RATE
    assert (
        finding.summary
        == f"multiplies matrices at {share * RATE:.3g} flop/s, {share:.0%} of the median of 7 peers".replace("%", " %")
    )


def test_the_slow_half_is_named_and_not_the_fast_one() -> None:
    assert [it.device for it in findings(gpus(*[RATE] * 4, *[RATE / 2] * 4))] == [f"GPU {i}" for i in range(4, 8)]


def test_another_model_is_no_peer() -> None:
    mixed = [*gpus(*[RATE] * 4), *gpus(RATE / 3, RATE / 3, model="L40S")]
    assert list(judge(mixed, [], RATE_TEST, ActiveThresholds())) == []


def test_the_profile_overrides_the_peers() -> None:
    all_slow = gpus(*[RATE / 2] * 8)  # a power cap on the whole node: the peers agree with each other
    assert findings(all_slow) == []
    found = findings(all_slow, expected_per_second=RATE)
    assert len(found) == 8 and found[0].evidence["expected_from"] == "the profile"


def test_one_gpu_alone_is_not_judged_and_not_called_ok() -> None:
    assert reason(gpus(RATE)).endswith("to judge the rate by: GPU 0 (7e+14 flop/s)")
    assert list(judge(gpus(RATE), [], RATE_TEST, ActiveThresholds(expected_per_second=RATE))) == []


def test_a_gpu_that_was_not_measured_is_unknown() -> None:
    assert reason(gpus(RATE, RATE), "GPU 2: in use by process 7") == "GPU 2: in use by process 7"
    assert reason([], "GPU 0: in use") == "GPU 0: in use"


def test_a_wrong_result_is_critical_at_any_rate() -> None:
    (finding,) = findings([*gpus(RATE, RATE), Measurement("GPU 2", "H100", RATE, 1000, 1)])
    assert (finding.code, finding.device, finding.severity) == ("GPU_WRONG_RESULT", "GPU 2", Severity.CRITICAL)
    assert finding.summary.startswith("1 of 1000 values are wrong")


rates = st.lists(st.floats(1e9, 1e15), max_size=10).map(lambda values: gpus(*values))


@given(rates, st.randoms())
def test_the_order_of_the_gpus_does_not_matter(measured: list[Measurement], random: Any) -> None:
    shuffled = measured[:]
    random.shuffle(shuffled)
    names = {(it.device, it.severity) for it in findings(measured)}
    assert {(it.device, it.severity) for it in findings(shuffled)} == names


@given(rates)
def test_a_gpu_as_fast_as_most_is_never_accused(measured: list[Measurement]) -> None:
    accused = {it.device for it in findings(measured)}
    for each in measured:
        slower = sum(other.per_second <= each.per_second for other in measured if other is not each)
        assert each.device not in accused or 2 * slower <= len(measured)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_the_median_is_the_median(values: list[float]) -> None:
    import statistics

    assert median(values) == pytest.approx(statistics.median(values))


# --- on the CPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", sorted(set(SIZES.values())))
def test_every_partial_sum_is_exact_in_32_bits(depth: int) -> None:
    left, right, product = operands(torch, depth)
    assert set(left.unique().tolist()) == set(right.unique().tolist()) == set(range(-LARGEST, LARGEST + 1))
    largest = max(int((row[:, None] * right).abs().sum(0).max()) for row in left)
    assert largest < 1 << 24  # float32 has 24 bits; any order of summation stays below the sum of absolute values
    assert int(product.abs().max()) < 65504  # float16's largest number
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(left.to(dtype).to(torch.int64), left)
        assert torch.equal((left.to(dtype) @ right.to(dtype)).cpu(), product.to(dtype))
    assert len(product.unique()) > 1000  # a product of equal values would hide misplaced ones


def test_the_multipliers_have_work() -> None:
    """Multiplications by 0 and 1 take little power: 894 TFLOP/s of an H200 in place of 788 with random numbers."""
    left, right, _ = operands(torch, SIZES[True])
    for entries in (left, right):
        assert float((entries.abs() <= 1).to(torch.float64).mean()) < 0.15


@pytest.mark.slow
def test_correct_products_and_copies_have_no_wrong_values() -> None:
    for measure in (multiply, copy_in_memory, copy_there_and_back):
        measured = measure(torch, CPU, 0.01)
        assert measured.wrong == 0 and measured.per_second > 0 and measured.checked > 1 << 18


def test_one_wrong_value_in_a_product_is_found() -> None:
    def faulty(left: Any, right: Any) -> Any:
        product = left @ right
        product[17, 4] += 1
        return product

    measured = multiply(torch, CPU, 0.01, faulty)
    assert measured.wrong >= 1
    assert [it.code for it in findings([measured])] == ["GPU_WRONG_RESULT"]


def test_a_product_of_nan_is_wrong() -> None:
    assert multiply(torch, CPU, 0.01, lambda left, right: (left @ right) * float("nan")).wrong > 0


def _lose_a_word(target: Any, source: Any) -> None:
    target.copy_(source)
    target[-1] = 0


def _misplace_a_word(target: Any, source: Any) -> None:
    target.copy_(source)
    target[5] = source[6]


def _do_nothing_after_the_first(calls: list[int]) -> Any:
    def move(target: Any, source: Any) -> None:
        calls.append(1)
        if len(calls) < 3:
            target.copy_(source)

    return move


def _omit_the_copy_there(calls: list[int]) -> Any:
    """Omits every copy to the device but the first: what is left from the last round must not count as copied."""

    def move(target: Any, source: Any) -> None:
        calls.append(1)
        if len(calls) == 1 or len(calls) % 2 == 0:
            target.copy_(source)

    return move


@pytest.mark.slow
@pytest.mark.parametrize("measure", [copy_in_memory, copy_there_and_back])
def test_a_copy_that_loses_moves_or_omits_words_is_wrong(measure: Any) -> None:
    for fault in (_lose_a_word, _misplace_a_word, _do_nothing_after_the_first([]), _omit_the_copy_there([])):
        assert measure(torch, CPU, 0.01, fault).wrong > 0, fault.__name__


@pytest.mark.slow
def test_a_device_of_half_the_rate_is_slow() -> None:
    """The slow device takes nine times as long, so that the load of the machine does not decide the test."""

    def slow(left: Any, right: Any) -> Any:
        for _ in range(8):
            left @ right
        return left @ right

    healthy = [multiply(torch, CPU._replace(name=f"CPU run {number}"), 0.05) for number in range(3)]
    faulty = multiply(torch, CPU._replace(name="CPU run 3"), 0.05, slow)
    assert "CPU run 3" in [it.device for it in findings([*healthy, faulty], slow_ratio=0.5)] and faulty.wrong == 0


def run_gate(tmp_path: Path, profile: str, *flags: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "cpu.yaml").write_text(profile)
    command = [sys.executable, "-m", "laggard", "healthcheck", "--format", "json", *flags]
    done = subprocess.run([*command, "--profile", str(tmp_path / "cpu.yaml")], capture_output=True, timeout=300)
    return done.returncode, json.loads(done.stdout)


ON_THE_CPU = {"device": "cpu", "seconds": 0.02, "slow_ratio": 0.001, "critical_ratio": 0}


@pytest.mark.slow
def test_the_gate_runs_them_when_asked_to(tmp_path: Path) -> None:
    only = [word for name in sorted(ACTIVE_NAMES) for word in ("--only", name)]
    status, report = run_gate(
        tmp_path, json.dumps({"thresholds": {name: ON_THE_CPU for name in ACTIVE_NAMES}}), "--active", *only
    )
    assert (status, report["verdict"], report["findings"]) == (0, "ok", []), report
    assert {probe["name"] for probe in report["probes"]} == ACTIVE_NAMES
    for name in ACTIVE_NAMES:
        measured = report["facts"][name]["measured"]
        assert list(measured) == ["unit", "devices", "emulated"]
        assert list(measured["devices"]) == measured["emulated"] == ["CPU run 0", "CPU run 1", "CPU run 2"]
        for device in measured["devices"].values():
            assert list(device) == ["kind", "per_second", "checked", "wrong"] and device["wrong"] == 0


@pytest.mark.slow
def test_an_expected_rate_of_the_profile_is_judged_by_the_gate(tmp_path: Path) -> None:
    profile = "active: true\nthresholds: {active_matmul: {device: cpu, seconds: 0.02, expected_per_second: 1.0e+18}}\n"
    status, report = run_gate(tmp_path, profile, "--only", "active_matmul", "--only", "clock")
    slow = [it for it in report["findings"] if it["code"] == "GPU_SLOW"]
    assert status == 1 and len(slow) == 3 and slow[0]["severity"] == "critical"
    assert {probe["name"] for probe in report["probes"]} == {"active_matmul", "clock"}


# --- when they must not run -------------------------------------------------------------------------------------------


def test_they_run_only_when_asked_for() -> None:
    assert not ACTIVE_NAMES & {probe.name for probe in choose_probes(Profile(), (), (), "")}
    as_the_daemon_chooses = choose_probes(Profile(active=True), (), (), "")
    assert not ACTIVE_NAMES & {probe.name for probe in as_the_daemon_chooses}
    assert {probe.name for probe in choose_probes(Profile(), (), (), "", active=ACTIVE_PROBES)} >= ACTIVE_NAMES


def test_a_recorded_machine_is_not_loaded() -> None:
    with pytest.raises(Unknown, match="recorded machine"):
        measure_all(Host(str(MACHINES / "plain")), ActiveThresholds(), lambda *_: pytest.fail("was measured"))


def test_a_machine_without_gpus_is_skipped() -> None:
    """This machine may be one; else the test is skipped."""
    try:
        found = devices_module.query_non_mig_gpus(Host())
    except NotApplicable:
        with pytest.raises(NotApplicable, match="no NVIDIA GPU"):
            measure_all(Host(), ActiveThresholds(), lambda *_: pytest.fail("was measured"))
    except Unknown:
        pytest.skip("the PCI tree of this machine cannot be read")
    else:
        pytest.skip(f"this machine has {len(found)} GPUs")


GIB = 1 << 30


def fake_torch(count: int, used: Sequence[float] = (), first: int = 0, available: bool = True) -> Any:
    def memory(index: int) -> tuple[int, int]:
        taken = used[index] if index < len(used) else 0.01
        return int(80 * GIB * (1 - taken)), 80 * GIB

    cuda = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: count,
        get_device_properties=lambda index: SimpleNamespace(name="H100", uuid=f"uuid-{index + first}"),
        mem_get_info=memory,
    )
    return SimpleNamespace(cuda=cuda, __version__="2.9")


def gpu(index: int, **changes: Any) -> Gpu:
    values = {"uuid": f"GPU-uuid-{index}", "bus_id": f"0000:{index:02x}:00.0", "processes": (), "mig": False}
    return Gpu(index=index, **{**values, **changes})


def devices(monkeypatch: pytest.MonkeyPatch, listed: Sequence[Gpu], library: Any) -> list[Any]:
    monkeypatch.setattr(devices_module, "query_non_mig_gpus", lambda host: tuple(listed))
    monkeypatch.setattr(devices_module, "load_torch", lambda: library)
    return list(devices_module._gpus(Host()))


def test_idle_gpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices(monkeypatch, [gpu(0), gpu(1)], fake_torch(2)) == [
        ComputeDevice("GPU 0 (0000:00:00.0)", "H100", "cuda:0", "0000:00:00.0"),
        ComputeDevice("GPU 1 (0000:01:00.0)", "H100", "cuda:1", "0000:01:00.0"),
    ]


def test_a_gpu_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        gpu(0, processes=(GpuProcess(pid=4711),)),
        gpu(1, processes=None, errors={"processes": "NO_PERMISSION"}),
        gpu(2),  # no process is listed, and a third of its memory is taken
        gpu(3),
    ]
    found = devices(monkeypatch, listed, fake_torch(4, [0.01, 0.01, 0.33]))
    assert found[:3] == [
        NotMeasured("GPU 0 (0000:00:00.0): in use by process 4711"),
        NotMeasured("GPU 1 (0000:01:00.0): unknown whether it is in use: NO_PERMISSION"),
        NotMeasured("GPU 2 (0000:02:00.0): in use: 33 % of its memory is taken"),
    ]
    assert found[3].torch_name == "cuda:3"


@pytest.mark.parametrize("cuda", [12, 11])
def test_a_gpu_in_use_gets_no_context(monkeypatch: pytest.MonkeyPatch, cuda: int) -> None:
    """Half a gigabyte of a job's memory. GPU 0 is the one that is current."""
    library = lazy_torch(LazyDevice(), LazyDevice(), LazyDevice(), cuda=cuda)
    listed = [gpu(0, processes=(GpuProcess(pid=4711),)), gpu(1), gpu(2)]
    monkeypatch.setattr(devices_module, "query_non_mig_gpus", lambda host: tuple(listed))
    monkeypatch.setattr(devices_module, "load_torch", lambda: library)

    def measure(library: Any, device: ComputeDevice) -> Measurement:
        index = library.cuda.current_device()
        seconds = devices_module._timed(library, device, lambda: library.lazy_cuda.launch(index, 0.001))
        return Measurement(device.torch_name, device.model, 1 / seconds, 1, 0)

    measured, _ = measure_all(Host(), ActiveThresholds(), measure)
    assert [it.device for it in measured] == ["cuda:1", "cuda:2"] and all(0 < it.per_second <= 1000 for it in measured)
    assert library.lazy_cuda.contexts == {1, 2} and library.cuda.current_device() == 0


def test_gpus_that_only_torch_or_only_nvml_knows_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES hides some GPUs and renumbers the others; they are matched by UUID."""
    found = devices(monkeypatch, [gpu(0), gpu(1), gpu(2)], fake_torch(2, first=1))
    assert [it.name if isinstance(it, ComputeDevice) else it.reason for it in found] == [
        "GPU 1 (0000:01:00.0)",
        "GPU 2 (0000:02:00.0)",
        "GPU 0 (0000:00:00.0): not visible to torch",
    ]
    assert "NVML knows no such GPU" in devices(monkeypatch, [gpu(7)], fake_torch(1))[0].reason
    with pytest.raises(Unknown, match="NVML lists 1 GPUs, torch 2.9 can use none of them"):
        devices(monkeypatch, [gpu(0)], fake_torch(0, available=False))


def test_an_error_of_one_device_leaves_the_others_judged() -> None:
    def measure(library: Any, device: ComputeDevice) -> Measurement:
        if device.name.endswith("1"):
            raise RuntimeError("CUDA error: out of memory\nmore of it")
        return Measurement(device.name, device.model, RATE, 1, 0)

    measured, not_measured = measure_all(Host(), ActiveThresholds(device="cpu"), measure)
    assert [it.device for it in measured] == ["CPU run 0", "CPU run 2"]
    assert [it.reason for it in not_measured] == ["CPU run 1: CUDA error: out of memory"]


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Eight idle GPUs of a torch without any: what is measured is the test's own."""
    library = fake_torch(8)
    library.inference_mode = contextlib.nullcontext
    library.cuda.device = lambda name: contextlib.nullcontext()
    library.cuda.empty_cache = lambda: None
    monkeypatch.setattr(devices_module, "query_non_mig_gpus", lambda host: tuple(gpu(index) for index in range(8)))
    monkeypatch.setattr(devices_module, "load_torch", lambda: library)
    monkeypatch.setattr(devices_module, "_broken", [])
    yield library


def failing_on(name: str, text: str) -> Any:
    def measure(library: Any, device: ComputeDevice) -> Measurement:
        if device.torch_name == name:
            raise RuntimeError(f"CUDA error: {text}\nCUDA kernel errors might be asynchronously reported")
        return Measurement(device.name, device.model, RATE, 1, 0)

    return measure


def test_cuda_that_does_not_start_on_one_gpu_of_eight(eight_gpus: SimpleNamespace) -> None:
    """It is unknown, and the other seven are measured."""
    start = eight_gpus.cuda.mem_get_info

    def mem_get_info(index: int) -> tuple[int, int]:
        if index == 3:
            raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")
        return start(index)

    eight_gpus.cuda.mem_get_info = mem_get_info
    measured, not_measured = measure_all(Host(), ActiveThresholds(), failing_on("", ""))
    assert [it.device for it in measured] == [gpu(index).device for index in range(8) if index != 3]
    assert [it.reason for it in not_measured] == [
        f"{gpu(3).device}: CUDA does not start on it: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    ]
    assert findings(measured) == [] and reason(measured, not_measured[0].reason).startswith(gpu(3).device)


@rows("probes/cuda_errors")
def test_a_gpu_that_stops_with_an_error_is_named_and_no_other(
    text: str, code: str, eight_gpus: SimpleNamespace
) -> None:
    """CUDA repeats such an error for every GPU of the process: the GPUs after it are unknown, in later probes too."""
    measured, not_measured = measure_all(Host(), ActiveThresholds(), failing_on("cuda:2", text))
    assert [it.device for it in measured] == [gpu(0).device, gpu(1).device]
    with pytest.raises(Unknown, match="GPU 7 .*: not measured after GPU 2"):
        found = []
        for it in judge(measured, not_measured, RATE_TEST, ActiveThresholds()):
            found.append((it.code, it.severity, it.device))
    assert found == [(code, Severity.CRITICAL, gpu(2).device)]
    measured, not_measured = measure_all(Host(), ActiveThresholds(), failing_on("", ""))
    assert measured == [] and len(not_measured) == 8 and not any(it.fault for it in not_measured)


def test_an_error_of_the_probe_accuses_no_gpu(eight_gpus: SimpleNamespace) -> None:
    measured, not_measured = measure_all(Host(), ActiveThresholds(), failing_on("cuda:2", "out of memory"))
    assert len(measured) == 7 and [it.fault for it in not_measured] == [""]
    assert findings(measured) == []


def test_the_affinity_is_restored() -> None:
    import os

    before = os.sched_getaffinity(0)
    with pinned_near(Host(), "0000:ff:1f.7"):
        assert os.sched_getaffinity(0) == before  # there is no such device: nothing changes
    assert os.sched_getaffinity(0) == before


def test_the_gate_without_them_loads_no_torch() -> None:
    code = "import sys; import laggard.gate.command; sys.exit('torch' in sys.modules or 'statistics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
