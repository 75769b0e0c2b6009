"""The benchmark of Flight Recorder dumps: simulated dumps hold what torch's do, and nobody is accused wrongly."""

import json
import pickle
from pathlib import Path

import pytest
from quality.dumps import Answer, answer_of, judge_answer
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
