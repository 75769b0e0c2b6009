"""What gpu-check makes of what it measured: the faults that it is there for do not pass."""

from collections import Counter
from typing import Any

import pytest
from support.rows import rows


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


@rows("gpu_check/operations")
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


@rows("gpu_check/named_ranks")
def test_only_the_slow_rank_may_be_named(culprits: tuple[Any, ...], good: bool) -> None:
    from gpu_check.parts.nccl_ranks import judge_slow

    usual = {"kind": "slow_compute", "slowdown_ratio": 2.0}
    location = {"culprits": [{**usual, **each} for each in culprits], "verdict": "fail" if culprits else "ok"}
    assert judge_slow(location, "").good is good
    assert not judge_slow(None, "it ended with 2").good


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


def test_a_cost_beyond_both_budgets_does_not_pass() -> None:
    from gpu_check.parts.overhead_pairs import outcome

    cheap, small, dear = [(1.0, 1.1)] * 5, [(20.0, 20.3)] * 5, [(1.0, 1.3)] * 5
    assert [outcome("", each).status for each in (cheap, small, dear)] == ["ok", "ok", "FAIL"]
    assert "1.3000 times as long with the hooks (1.3000 to 1.3000, quartiles of 5 pairs)" in outcome("", dear).text
