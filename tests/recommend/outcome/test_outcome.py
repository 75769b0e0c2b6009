"""What became of advice: simulated runs before and after, with what was advised done, not done, and done beside other
changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from simulator.programme import FORWARD
from support.compared import phase, record, transfers
from support.timings import job

from laggard.locate.against.digest import Described, digest_of
from laggard.locate.verdict import locate
from laggard.model import Culprit
from laggard.recommend.advice.recommend import recommend
from laggard.recommend.advice.situation import Situation
from laggard.recommend.advice.values import Gain, Item
from laggard.recommend.outcome.advised import advised_of
from laggard.recommend.outcome.calibration import OUTCOMES, outcome_of, outcomes_by_kind, outcomes_by_target
from laggard.recommend.outcome.describe import document_lines, sentence
from laggard.recommend.outcome.judge import judged
from laggard.recommend.outcome.values import (
    MAX_ADVICE,
    AdviceDocument,
    AdviceHistory,
    Advised,
    Outcome,
    RunOutcomes,
    SeenRun,
)
from laggard.recording.reader import read_recording
from laggard.wire import decode, encode
from laggard.wire.digest import Digest

ENVIRONMENT = {"torch": "2.9", "NCCL_ALGO": "Ring"}
NODES = ("n0", "n1")


def run(slow: float = 0.0, seed: int = 0, variables: Mapping[str, str] = ENVIRONMENT, **changes: Any) -> Digest:
    """A run of 16 ranks on two nodes, of which n1 is slower by this share of a step."""
    timings = job(ranks=16, steps=60, slow=[(range(8, 16), slow)], seed=seed)
    found = digest_of(timings, Described(variables, 1000, "train.py", 5.0, 90.0))
    assert found is not None
    return structs.replace(found, **changes)


def seen(digest: Digest, *findings: tuple[str, str], judged_nodes: tuple[str, ...] | None = None) -> SeenRun:
    return SeenRun(digest, frozenset(findings), frozenset(digest.nodes if judged_nodes is None else judged_nodes))


def variable(name: str = "NCCL_ALGO", current: str = "Ring", recommended: str = "", **promised: Any) -> Advised:
    kind = f"nccl_env {name}"
    gain = Gain("rule", **promised)
    return Advised(kind=kind, target="nccl_env", key=name, current=current, recommended=recommended, promised=gain)


def slow_host(*codes: str, ratio: float = 1.5) -> Advised:
    gain = Gain("measured", ratio, 1.0, ratio)
    kind = "culprit slow_host"
    return Advised(kind=kind, target="culprit", key="slow_host", nodes=("n1",), codes=codes, promised=gain, incident=7)


def finding(code: str, *nodes: str) -> Advised:
    return Advised(kind=f"finding {code}", target="finding", key=code, nodes=nodes, codes=(code,))


def outcome(advised: Advised, before: SeenRun, now: SeenRun) -> Outcome:
    ((told,),) = (judged([advised], before, now, 100.0),)
    assert told.outcome is not None and structs.replace(told, outcome=None) == advised
    assert decode(encode(told), Advised) == told
    return told.outcome


def test_a_variable_that_was_advised_is_gone_and_the_run_is_faster() -> None:
    now = run(seed=1, variables={"torch": "2.9"}, job_id="later", started_at=95.0)
    told = outcome(variable(low=1.0, high=2.0), seen(run(0.4)), seen(now))
    assert (told.done, told.result, told.as_promised, told.why) == ("yes", "gained", True, "")
    assert told.how == "NCCL_ALGO is no longer set, before Ring"
    assert told.ratio == pytest.approx(1.4, rel=0.1) and told.low is not None and told.low > 1.3
    assert (told.job_id, told.started_at, told.judged_at) == ("later", 95.0, 100.0)


@pytest.mark.parametrize(("high", "as_promised"), [(1.5, True), (1.1, False), (None, True)])
def test_the_promise_is_kept_where_the_intervals_meet(high: float | None, as_promised: bool) -> None:
    told = outcome(variable(low=1.0, high=high), seen(run(0.4)), seen(run(variables={"torch": "2.9"})))
    assert (told.result, told.as_promised) == ("gained", as_promised)
    nothing = outcome(variable(), seen(run(0.4)), seen(run(variables={"torch": "2.9"})))
    assert nothing.result == "gained" and nothing.as_promised is None, "nothing was promised"


@pytest.mark.parametrize(("before", "after", "result"), [(0.0, 0.0, "no_difference"), (0.0, 0.3, "lost")])
def test_what_made_no_difference_or_lost_is_told(before: float, after: float, result: str) -> None:
    now = run(after, seed=1, variables={"torch": "2.9"})
    assert outcome(variable(low=1.2), seen(run(before)), seen(now)).result == result


@pytest.mark.parametrize(
    ("variables", "how"),
    [
        ({"torch": "2.9", "NCCL_ALGO": "Ring"}, "NCCL_ALGO is Ring still"),
        ({"torch": "2.9", "NCCL_ALGO": "Tree"}, "NCCL_ALGO is Tree, and neither what it was nor what was advised"),
    ],
)
def test_what_was_not_done_gained_nothing_however_fast_the_run_is(variables: Mapping[str, str], how: str) -> None:
    told = outcome(variable(low=1.0), seen(run(0.4)), seen(run(variables=variables)))
    assert (told.done, told.how, told.result, told.ratio) == ("no", how, "unknown", None)


def test_where_runs_do_not_tell_it_is_not_known() -> None:
    quiet = seen(run(variables={}))
    assert outcome(variable(), seen(run(0.4)), quiet).done == "unknown"
    loader = Advised(kind="launcher", target="launcher", key="DataLoader(num_workers)", recommended="more")
    told = outcome(loader, seen(run(0.4)), seen(run()))
    assert (told.done, told.result) == ("unknown", "unknown") and told.ratio is not None and told.ratio > 1.3
    assert told.why == "it is not known whether it was done"
    other = variable("OMP_NUM_THREADS", "", "4")
    assert outcome(other, seen(run()), seen(run())).how == "no run tells of OMP_NUM_THREADS"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"script": "eval.py"}, "script train.py -> eval.py"),
        ({"script": None}, "the later run does not tell its script"),
        ({"world_size": 32}, "world size 16 -> 32"),
        ({"nodes": ("n0", "n7")}, "nodes were changed that nobody advised to change: n1 -> n7"),
        ({"nodes": ("n0",)}, "nodes were changed that nobody advised to change: n1 -> none"),
        ({"nodes": ()}, "a run does not tell its nodes"),
        ({"nodes": tuple(f"n{n}" for n in range(64))}, "there are 64 nodes or more"),
        ({"work": 512.0}, "elements of input a step 256 -> 512"),
        ({"steps": 3}, "the later run has 3 steps after the warm-up, 16 are needed"),
        ({"ranks_seen": 7}, "the later run was seen of 7 of 16 ranks"),
        ({"environment": {"torch": "2.10"}}, "torch 2.9 -> 2.10"),
    ],
)
def test_runs_that_cannot_be_compared_claim_nothing_and_say_why(changes: dict[str, Any], reason: str) -> None:
    before = seen(run(0.4, work=256.0))
    now = seen(structs.replace(run(variables={"torch": "2.9"}, work=256.0), **changes))
    told = outcome(variable(low=1.0), before, now)
    assert (told.done, told.result, told.ratio, told.as_promised) == ("yes", "unknown", None, None)
    assert reason in told.why


def test_other_calls_are_no_other_work_where_the_advice_was_about_collectives_alone() -> None:
    before = run(0.4, calls={"all_reduce dp": 100.0})
    after = run(variables={"torch": "2.9"}, calls={"all_reduce dp": 4.0})
    assert outcome(variable(), seen(before), seen(after)).result == "gained"
    still = structs.replace(after, environment=ENVIRONMENT)
    told = outcome(slow_host("X"), seen(before, ("X", "n1")), seen(still))
    assert (told.done, told.result) == ("yes", "unknown") and "all_reduce dp a step 100 -> 4" in told.why


def test_an_advised_node_is_exchanged() -> None:
    now = seen(run(seed=2, nodes=("n0", "n9")))
    told = outcome(slow_host(ratio=1.5), seen(run(0.4)), now)
    assert (told.done, told.result, told.as_promised) == ("yes", "gained", True)
    assert told.how == "n1 is no longer among its nodes"
    other = outcome(slow_host(), seen(run(0.4)), seen(run(nodes=("n8", "n9"))))
    assert (other.done, other.result) == ("yes", "unknown")
    assert "nodes were changed that nobody advised to change: n0 -> n8 and n9" in other.why


def test_a_finding_went() -> None:
    before = seen(run(0.4), ("GPU_THROTTLED", "n1"))
    told = outcome(finding("GPU_THROTTLED", "n1"), before, seen(run(seed=1)))
    assert (told.done, told.how, told.result) == ("yes", "GPU_THROTTLED is gone from n1", "gained")
    still = outcome(finding("GPU_THROTTLED", "n1"), before, seen(run(seed=1), ("GPU_THROTTLED", "n1")))
    assert (still.done, still.how) == ("no", "GPU_THROTTLED is still on n1")
    silent = outcome(finding("GPU_THROTTLED", "n1"), before, seen(run(seed=1), judged_nodes=("n0",)))
    assert (silent.done, silent.how) == ("unknown", "it is not known what is wrong with n1 now")
    repaired = outcome(slow_host(), seen(run(0.4)), seen(run(seed=1)))
    assert repaired.done == "unknown", "a slow node without a finding may have been repaired, or not"


def test_one_change_that_several_pieces_of_advice_ask_for_is_one_and_two_are_two() -> None:
    before = seen(run(0.4), ("GPU_THROTTLED", "n1"), ("PCIE_WIDTH", "n0"))
    host, throttled = slow_host("GPU_THROTTLED"), finding("GPU_THROTTLED", "n1")
    one = judged([host, throttled], before, seen(run(seed=1), ("PCIE_WIDTH", "n0")))
    assert [it.outcome and it.outcome.result for it in one] == ["gained", "gained"]
    two = judged([host, throttled, finding("PCIE_WIDTH", "n0")], before, seen(run(seed=1)))
    for it in two:
        assert it.outcome is not None and (it.outcome.done, it.outcome.result) == ("yes", "unknown")
        assert "done together with " in it.outcome.why and it.outcome.ratio is not None
    away = judged([host, throttled], before, seen(run(seed=1, nodes=("n0", "n9"))))
    assert [it.outcome and it.outcome.result for it in away] == ["gained", "gained"], "both left with the node"


def test_deepspeed_settings_are_known_by_what_ranks_tell_of_them() -> None:
    def told(**settings: str) -> dict[str, str]:
        return {"torch": "2.9", **{f"deepspeed {name.replace('__', ' ')}": text for name, text in settings.items()}}

    bucket = Advised(
        kind="deepspeed zero_optimization.reduce_bucket_size", target="deepspeed",
        key="zero_optimization.reduce_bucket_size", current="1000", recommended="400000",
    )  # fmt: skip
    before = run(0.4, variables=told(stage="1", reduce_bucket_size="1000", section__zero_optimization="aaaa"))
    after = run(variables=told(stage="1", reduce_bucket_size="400000", section__zero_optimization="bbbb"))
    assert outcome(bucket, seen(before), seen(after)).result == "gained"
    default = structs.replace(bucket, recommended="500000000")
    usual = run(variables=told(stage="1", section__zero_optimization="cccc"))
    assert outcome(default, seen(before), seen(usual)).done == "yes", "DeepSpeed's default is not told"
    other = structs.replace(after, environment={**after.environment, "deepspeed stage": "2"})
    assert "deepspeed stage 1 -> 2" in outcome(bucket, seen(before), seen(other)).why
    overlap = structs.replace(bucket, key="zero_optimization.overlap_comm", recommended="true")
    on = run(variables=told(stage="1", overlap_comm="True", reduce_bucket_size="1000"))
    off = run(0.4, variables=told(stage="1", reduce_bucket_size="1000"))
    assert outcome(overlap, seen(off), seen(on)).result == "gained"


def test_simulated_recordings_from_the_verdict_to_the_outcome(tmp_path: Path) -> None:
    """A slow rank is named and its node exchanged; and collectives that became faster by a variable."""

    def recorded(name: str, seed: int, *plants: Any, **changes: Any) -> tuple[Any, Digest]:
        timings = read_recording([record(tmp_path / name, "dp8", seed, *plants, noise="calm", steps=48)]).timings
        digest = digest_of(timings, Described(ENVIRONMENT, script="train.py"))
        assert digest is not None
        return timings, structs.replace(digest, **changes)

    timings, before = recorded("before", 1, phase(FORWARD, 1.5, ranks=[3]))
    culprits = locate(timings).culprits
    assert [it.ranks for it in culprits] == [(3,)]
    advised = advised_of(recommend(Situation(culprits=culprits)).items, culprits, [("GPU_THROTTLED", before.nodes[0])])
    (culprit,) = (it for it in advised if it.target == "culprit")
    assert {it.kind for it in advised} == {f"culprit {culprits[0].kind}", "finding GPU_THROTTLED"}
    others = ("other", *before.nodes[1:])
    _, after = recorded("after", 2, nodes=tuple(sorted(others)))
    told = outcome(culprit, seen(before), seen(after))
    assert (told.done, told.result, told.as_promised) == ("yes", "gained", True), told

    _, slow = recorded("slow", 3, transfers("all_reduce", 3.0))
    _, fast = recorded("fast", 4, environment={"torch": "2.9"})
    assert outcome(variable(low=1.0), seen(slow), seen(fast)).result == "gained"
    _, same = recorded("same", 5, environment={"torch": "2.9"})
    _, calm = recorded("calm", 6)
    assert outcome(variable(low=1.0), seen(calm), seen(same)).result == "no_difference"


def test_advice_is_told_once_and_is_bounded() -> None:
    culprit = Culprit("slow_host", (1,), "n1", recoverable_ratio=0.25, advice="x" * 5000, findings=("GPU_THROTTLED",))
    hot = "n1 is hot", ("GPU_THROTTLED",), Gain("rule")
    repair = Item("host", "fans", None, None, *hot, "", "clean them", "", "s", repairs=True)
    loose = Item("launcher", "TORCH_X", "1", None, "r", (), Gain("rule"), "", "unset TORCH_X", "", "s")
    places = [("GPU_THROTTLED", "n1"), ("GPU_THROTTLED", "n2"), ("PCIE_WIDTH", "n1")]
    found = advised_of([repair, loose], [culprit], places, 9.0, lambda it: 77)
    assert [it.kind for it in found] == [
        "culprit slow_host", "finding GPU_THROTTLED", "launcher TORCH_X", "finding PCIE_WIDTH",
    ]  # fmt: skip
    assert (
        found[0].incident == 77 and len(found[0].recommended) <= 300 and found[0].promised.ratio == pytest.approx(4 / 3)
    )
    assert found[1].nodes == ("n1", "n2") and found[1].recommended == "clean them"
    many = advised_of([], [], [(f"CODE_{n}", "n1") for n in range(200)])
    assert len(many) == MAX_ADVICE


def _with(done: str, result: str = "unknown", as_promised: bool | None = None, kind: str = "nccl_env X") -> Advised:
    told = Outcome(done=done, how="", result=result, as_promised=as_promised)
    return Advised(kind=kind, target=kind.partition(" ")[0], key="X", outcome=told)


def test_the_table_counts_each_once_and_says_how_often_it_was_right() -> None:
    waiting = Advised(kind="nccl_env X", target="nccl_env", key="X")
    every = [
        waiting, _with("no"), _with("unknown"), _with("yes", "gained", True), _with("yes", "gained", False),
        _with("yes", "no_difference"), _with("yes", "lost", False), _with("yes"),
        _with("yes", "gained", True, "culprit slow_host"),
    ]  # fmt: skip
    assert {outcome_of(it) for it in every} == set(OUTCOMES)
    first, second = outcomes_by_kind(every)
    assert (first.kind, first.advised, first.waiting, first.done, first.not_done) == ("nccl_env X", 8, 1, 5, 1)
    assert (first.not_known, first.gained, first.no_difference, first.lost, first.not_comparable) == (1, 2, 1, 1, 1)
    assert (first.promised, first.as_promised, second.kind) == (3, 1, "culprit slow_host")
    assert sentence((first, second)) == (
        "Of 5 pieces of advice that were done and measured, 3 gained, 1 made no difference and 1 made it slower."
        " 2 of 4 gained what was promised."
    )
    odd = _with("yes", "gained", kind="whatever-a-user-writes 1")
    assert outcomes_by_target([*every, odd])[("other", "gained")] == 1


def test_the_text_has_the_answer_first_then_the_table_then_each_piece() -> None:
    told = judged([variable(low=1.0, high=2.0)], seen(run(0.4)), seen(run(variables={"torch": "2.9"})))
    of_run: dict[str, Any] = dict(owner=-1, job_id="812", script="train.py", world_size=16, started_at=0.0, made_at=1.0)
    runs = (RunOutcomes(**of_run, advised=told),)
    document = AdviceDocument(runs=runs, kinds=outcomes_by_kind(told), now=1.0, history=AdviceHistory("file"))
    lines = list(document_lines(document))
    assert (
        lines[0] == "Of the one piece of advice that was done and measured, 1 gained. 1 of 1 gained what was promised."
    )
    assert lines[2].split() == [
        "kind",
        "advised",
        "done",
        "gained",
        "no",
        "difference",
        "slower",
        "not",
        "comparable",
        "as",
        "promised",
    ]
    assert lines[3].split() == ["nccl_env", "NCCL_ALGO", "1", "1", "1", "0", "0", "0", "1", "of", "1"]
    assert lines[5] == "Job 812 (train.py), 16 ranks:"
    assert lines[6].startswith("  Remove NCCL_ALGO=Ring: done, and gained: 1.")
    assert "as promised" in lines[-1]
    empty = AdviceDocument(runs=(), kinds=(), now=1.0, history=AdviceHistory("off", "no file"))
    assert list(document_lines(empty)) == ["No advice is known.", "  No history is kept: no file"]
