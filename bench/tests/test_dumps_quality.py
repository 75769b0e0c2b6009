"""The benchmark of Flight Recorder dumps: simulated dumps hold what torch's do, and nobody is accused wrongly."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest
from dumps_quality import error_of, whole
from quality.answer import NO_DUMP, Named
from quality.dumps import (
    REFUSED,
    Answer,
    Judged,
    answer_of,
    answer_of_tool,
    compared,
    failures,
    judge_answer,
    judge_tool,
)
from quality.scope import DUMP_SCOPES, EVERY_KIND, FOUND, NOBODY, WHOLE
from quality.tools.shipped.adapters import SHIPPED
from simulator.case import programme_of
from simulator.devices import Stop, Trouble, play
from simulator.dump_cases import KINDS, dump_case, write_case
from simulator.torch_dumps import RELEASES, Dumping, dump, numbered
from support.flight_recorder import dump as torchs_dump
from support.flight_recorder import entry as torchs_entry

LAYOUT = "dp=2,tp=2,pp=2,schedule=1f1b,micro=2,blocks=1"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_accused_wrongly(kind: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        case = dump_case(kind, seed)
        write_case(case, tmp_path / str(seed))
        answer = answer_of(tmp_path / str(seed))
        mark = judge_answer(case, answer)
        assert mark != "wrong", (seed, case.layout, case.place, sorted(case.culprits), answer)
        if kind in ("cpu", "deadlock", "slow", "complete"):
            assert mark == "right", (seed, case.layout, sorted(case.culprits), answer)


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_case(dump_case("gpu_tp", 3), tmp_path / place)
    one, other = ({file.name: file.read_bytes() for file in (tmp_path / place).iterdir()} for place in ("a", "b"))
    assert one == other


def test_a_healthy_run_ends_with_everything_done() -> None:
    programme = programme_of(LAYOUT)
    played = play(programme, 3, Trouble())
    assert not played.stopped and all(call.done <= played.last for calls in played.calls for call in calls)


def test_a_stopped_gpu_finishes_nothing_more_and_hosts_go_on_until_their_queues_are_full() -> None:
    programme = programme_of(LAYOUT)
    item = next(
        at for at, it in enumerate(programme.items) if it.rank == 3 and it.record and it.record.group.role == "tp"
    )
    short, long = (
        play(programme, 4, Trouble(stops=(Stop(3, 1, item, 0.5),), waits_for_steps=False, queued=queued))
        for queued in (100, 1000)
    )
    for played in (short, long):
        assert played.stopped == {3}
        stop = max(call.done for call in played.calls[3] if call.done < float("inf"))
        assert all(call.done > stop for call in played.calls[3] if call.step > 1)
    opened = [[sum(call.done > 1e9 for call in calls) for calls in played.calls] for played in (short, long)]
    assert all(one < other for one, other in zip(*opened, strict=True))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_simulated_dumps_have_the_fields_of_torchs(release: str, form: str) -> None:
    programme = programme_of(LAYOUT)
    made = dump(play(programme, 2, Trouble()), 1, numbered(programme), Dumping(release, form))
    made = json.loads(json.dumps(made)) if form == "json" else pickle.loads(pickle.dumps(made))
    world = ("0", "default_pg", [0])
    newest = torchs_dump([world], [torchs_entry(world, "all_reduce", 1)], {0: (1, 1)})
    assert made.keys() <= {*newest.keys(), "nccl_version"}
    for entry in made["entries"]:
        assert entry.keys() <= newest["entries"][0].keys()
    if release == "2.13" and form == "pickle":
        assert made.keys() == newest.keys() and made["entries"][0].keys() == newest["entries"][0].keys()


def test_answers_are_judged_by_whom_they_name() -> None:
    case = dump_case("gpu_tp", 0)._replace(culprits=frozenset({3}), without=frozenset())
    said = {
        "right": Answer("fail", ((3,),), (), ()),
        "narrowed": Answer("fail", ((2, 3),), (), ()),
        "unsure": Answer("unknown", (), (("unfinished", (2, 3)),), ()),
        "wrong": Answer("fail", ((3,), (5,)), (), ()),
    }
    assert {mark: judge_answer(case, answer) for mark, answer in said.items()} == {mark: mark for mark in said}
    assert judge_answer(case, Answer("fail", (), (("deadlock", (3,)),), ())) == "wrong"
    nobody = case._replace(expected="nobody")
    assert judge_answer(nobody, said["right"]) == "wrong" and judge_answer(nobody, said["unsure"]) == "right"


def test_who_only_says_that_a_rank_left_no_dump_accuses_nobody() -> None:
    case = dump_case("cpu", 0)._replace(culprits=frozenset({3}), without=frozenset({3, 5}))
    dumped, both = Named("hung", (4,)), [Named(NO_DUMP, (3,)), Named(NO_DUMP, (5,))]
    seen = answer_of_tool(lambda trace: both, Path())
    assert not seen.culprits and judge_tool(case, seen) == "right"
    assert judge_tool(case._replace(culprits=frozenset({2})), seen) == "unsure"
    assert judge_tool(case._replace(expected="nobody", culprits=frozenset()), seen) == "right"
    assert judge_tool(case, answer_of_tool(lambda trace: [dumped, *both], Path())) == "wrong"


def test_a_tool_that_fails_has_refused() -> None:
    def fails(trace: Path) -> list[Named]:
        raise RuntimeError("KeyError: 47")

    said = answer_of_tool(fails, Path())
    assert judge_tool(dump_case("cpu", 0), said) == judge_tool(dump_case("slow", 0), said) == REFUSED
    assert error_of(said) == "KeyError"


def test_whole_dumps_are_all_there_from_the_first_record_on(tmp_path: Path) -> None:
    case = next(made for seed in range(50) if (made := dump_case("cpu", seed)).without)
    write_case(whole(case), tmp_path)
    dumps = [pickle.loads(file.read_bytes()) for file in sorted(tmp_path.iterdir())]
    assert len(dumps) == case.world_size
    assert all(one["version"] == "2.10" and one["entries"][0]["record_id"] == 0 for one in dumps)


def test_tools_are_compared_in_what_they_claim_and_over_all() -> None:
    def judged(*marks: str) -> list[Judged]:
        cases = [("cpu", WHOLE, False), ("cpu", WHOLE, True), ("cpu", FOUND, False), ("gpu_tp", WHOLE, False)]
        cases += [("slow", FOUND, False), ("slow", WHOLE, False)]
        return [Judged(*case, mark) for case, mark in zip(cases, marks, strict=True)]

    found = {
        "laggard": judged("right", "right", "right", "narrowed", "right", "right"),
        "torch fr_trace": judged("right", REFUSED, "wrong", "unsure", "wrong", REFUSED),
    }
    report = compared(found, {"laggard": "its own rules", "torch fr_trace": "as it ships, 1"})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines() if line.startswith("| ")]
    assert [cell.partition(",")[0] for cell in rows[0][2:4]] == ["recall in its scope", "recall over all"]
    assert rows[1][2:4] == ["1.00 (3 right, 1 narrowed, of 4)"] * 2
    assert rows[2][2:] == [
        "1.00 (1 right, 0 narrowed, of 1)", "0.25 (1 right, 0 narrowed, of 4)",
        "0 of 1", "1 of 4", "1 of 1", "2 of 6",
    ]  # fmt: skip
    assert "| cpu | 2 right | 1 right; out of scope: 1 refused |" in report.partition("| dumps whole")[2]


def test_errors_are_told_by_how_many() -> None:
    told = failures({"torch fr_trace": Counter({"KeyError": 9, "no answer within 120 s": 1}), "NVRx": Counter()})
    assert told == ["- torch fr_trace ended with an error: KeyError (9), no answer within 120 s (1)"]


def test_every_tool_that_reads_dumps_says_what_it_claims_of_them() -> None:
    assert set(DUMP_SCOPES) == {name for name, tool in SHIPPED.items() if tool.dumps}
    for scope in DUMP_SCOPES.values():
        assert scope.kinds <= EVERY_KIND - NOBODY and scope.states and all(claim.source for claim in scope.claims)
