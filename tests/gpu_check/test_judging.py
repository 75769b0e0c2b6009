"""What gpu-check makes of what it measured: the faults that it is there for do not pass."""

from collections import Counter
from typing import Any

import pytest


def rank(seen: dict[str, int] | None = None, losses: tuple[str, ...] = ("0x1p+0",) * 4, **more: Any) -> Any:
    from gpu_check.jobs.launch import Rank

    return Rank(0, {"losses": losses, "weights": "w", "seen": seen, **more}, more.pop("errors", ""))


def recorded(**changes: Any) -> Any:
    from gpu_check.jobs.launch import Recorded

    usual: dict[str, Any] = {
        "rank": 0,
        "gpu": "GPU-0",
        "steps": 4,
        "errors": 0,
        "lost": 0,
        "collectives": Counter(all_reduce=8),
        "clocks": Counter(device=8),
        "phases_ms": {"forward": 10.0},
    }
    return Recorded(**{**usual, **changes})


def test_a_training_that_is_recorded_whole_and_changed_in_nothing_passes() -> None:
    from gpu_check.parts.trainings import verdict

    seen = {"nccl:all_reduce": 8}
    assert verdict("ddp", [rank()], [rank(seen)], [recorded()], on_gpu=True).good


@pytest.mark.parametrize(
    "hooked, ours, text",
    [
        (rank, {"lost": 1}, "1 collectives lost"),
        (rank, {"errors": 2}, "2 errors in the hooks"),
        (rank, {"steps": 2}, "2 of 4 steps"),
        (rank, {"clocks": Counter(device=2, host=6)}, "times are not the GPU's"),
        (lambda: rank(losses=("0x2p+0",) * 4), {}, "not the same"),
        (lambda: rank({"nccl:all_reduce": 9}), {}, "8 of 9 all_reduce"),
        (lambda: rank({"nccl:all_reduce": 7}), {}, "8 of 7 all_reduce"),
        (lambda: rank({"nccl:all_reduce": 9, "nccl:coalesced": 1}), {}, "8 of 9 all_reduce"),
    ],
)
def test_a_training_that_is_not_does_not(hooked: Any, ours: dict[str, Any], text: str) -> None:
    from gpu_check.parts.trainings import verdict

    outcome = verdict("ddp", [rank()], [hooked()], [recorded(**ours)], on_gpu=True)
    assert not outcome.good and text in outcome.text


def test_what_the_hooks_wrote_to_standard_error_does_not_pass_but_for_what_is_expected() -> None:
    from gpu_check.jobs.launch import Rank, suspicious_lines

    bare = [Rank(0, {}, "CUDA warning: of the machine\n")]
    text = "CUDA warning: of the machine\nlaggard: not attached\nWarning: driver shutting down\nUserWarning: harmless\n"
    expected = "laggard: collectives captured in CUDA graphs are not recorded: replays call nothing\n"
    assert suspicious_lines([Rank(0, {}, text + expected)], bare) == [
        "Warning: driver shutting down",
        "laggard: not attached",
    ]


@pytest.mark.parametrize(
    "name, op",
    [
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("gloo:allreduce", "all_reduce"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:coalesced", ""),
        ("gloo:gather", "gather"),
    ],
)
def test_operations_by_the_names_that_torch_gives(name: str, op: str) -> None:
    from gpu_check.parts.trainings import operation

    assert operation(name) == op


def test_two_ranks_on_the_gpu_of_one_do_not_pass() -> None:
    from gpu_check.parts.no_set_device import judge

    def outcomes(gpus: list[str], forward: float, used: int) -> list[bool]:
        bare = [rank(gpu0_used_mib=1000), rank()]
        hooked = [rank(gpu0_used_mib=used, forward_ms=10.2), rank(forward_ms=10.2)]
        ranks = [recorded(gpu=gpu, phases_ms={"forward": forward}) for gpu in gpus]
        return [each.good for each in judge(bare, hooked, ranks)]

    assert all(outcomes(["GPU-0", "GPU-1"], 10.0, 1010))
    assert outcomes(["GPU-0", "GPU-0"], 51.2, 1600) == [False, True, False, False, False]


@pytest.mark.parametrize(
    "culprits, verdict, slow, good",
    [
        ([{"ranks": [1], "phase": "forward"}], "fail", 1, True),
        ([{"ranks": [0], "phase": "forward"}], "fail", 1, False),
        ([{"ranks": [1], "phase": "backward"}], "fail", 1, False),
        ([], "ok", 1, False),
        ([], "ok", None, True),
        ([], "unknown", None, False),
        ([{"ranks": [1], "phase": "forward"}], "fail", None, False),
    ],
)
def test_only_the_slow_rank_may_be_named(culprits: list[Any], verdict: str, slow: int | None, good: bool) -> None:
    from gpu_check.parts.slow_rank import judge

    assert judge("", slow, {"culprits": culprits, "verdict": verdict}, "").good is good


def test_the_rank_that_failed_by_itself_is_named() -> None:
    from gpu_check.jobs.launch import Rank, problem_of

    killed, failed = (
        Rank(-9, None, ""),
        Rank(1, None, "Traceback\n  File x\nRuntimeError: CUDA error: bad\n[rank1]: bye\n"),
    )
    assert problem_of([killed, failed]) == "rank 1 ended with 1: RuntimeError: CUDA error: bad"
    assert problem_of([rank(), rank()]) == ""


def test_a_probe_that_failed_does_not_pass_and_one_that_is_unknown_does() -> None:
    from gpu_check.parts.gate import probes

    usual = {"verdict": "unknown", "elapsed_seconds": 0.1, "findings": []}
    report = {
        "probes": [
            {**usual, "name": "gpu_count", "reason": "no PCI tree"},
            {**usual, "name": "gpu_ecc", "reason": "failed: AttributeError: c_nvmlGpuFabricInfo_v2_t"},
            {**usual, "name": "gpu_temperature", "verdict": "fail", "reason": "", "findings": [0]},
        ],
        "findings": [{"severity": "critical", "code": "GPU_TOO_HOT", "device": "GPU 0", "summary": "96 C"}],
    }
    found = list(probes(report))
    assert [each.good for each in found] == [True, False, True] and "GPU_TOO_HOT" in found[2].text


def test_a_probe_that_judged_nothing_proves_nothing() -> None:
    from gpu_check.parts.gate import probes

    def row(verdict: str, reason: str = "") -> dict[str, object]:
        return {"name": verdict, "verdict": verdict, "elapsed_seconds": 0.1, "reason": reason}

    rows = [row("ok"), row("fail"), row("skipped", "no NVSwitch"), row("unknown", "no PCI tree")]
    report = {"probes": [*rows, row("unknown", "failed: KeyError")], "findings": []}
    assert [each.status for each in probes(report)] == ["ok", "ok", "info", "info", "FAIL"]


CULPRIT = {"kind": "slow_compute", "ranks": [1], "phase": "forward", "slowdown_ratio": 2.0}


HUNG = {"kind": "hung", "ranks": [1], "phase": "collective", "device_stopped": True}


@pytest.mark.parametrize(
    "culprits, by_dumps, by_recording",
    [
        ([HUNG], True, True),
        ([{**HUNG, "device_stopped": False}], False, True),
        ([{**HUNG, "ranks": [0, 1]}], False, True),
        ([{**HUNG, "ranks": [0]}], False, False),
        ([], False, True),
    ],
)
def test_only_the_gpu_that_stands_still_may_be_accused(culprits: list[Any], by_dumps: bool, by_recording: bool) -> None:
    from gpu_check.parts.stuck_kernel import by_flight_recorder, by_own_recording

    location = {"culprits": culprits, "verdict": "fail" if culprits else "unknown"}
    assert by_flight_recorder(location, "").good is by_dumps
    assert by_own_recording(location).good is by_recording


def test_a_cost_beyond_both_budgets_does_not_pass() -> None:
    from gpu_check.parts.overhead_pairs import outcome

    cheap, small, dear = [(1.0, 1.1)] * 5, [(20.0, 20.3)] * 5, [(1.0, 1.3)] * 5
    assert [outcome("", each).status for each in (cheap, small, dear)] == ["ok", "ok", "FAIL"]
    assert "1.3000 times as long with the hooks (1.3000 to 1.3000, quartiles of 5 pairs)" in outcome("", dear).text


def test_a_script_that_ends_otherwise_with_the_hooks_does_not_pass() -> None:
    from gpu_check.parts.one_process import Ended, nothing_of_cuda, same_end

    bare = Ended(1, "", "RuntimeError: CUDA error: device-side assert triggered", ("CUDA warning: of 4711",), 5.0)
    assert same_end(bare, bare._replace(seconds=6.0), rehearse=False).good
    for other in ({"status": 134}, {"error": "KeyError"}, {"output": "more"}, {"seconds": 60.0}, {"status": None}):
        assert not same_end(bare, bare._replace(**other), rehearse=False).good, other
    lines = [("CUDA warning: of 4712",), ("Warning: driver shutting down",), ("laggard: times are the host's now",)]
    assert [nothing_of_cuda(bare, bare._replace(lines=each)).status for each in lines] == ["ok", "FAIL", "info"]
