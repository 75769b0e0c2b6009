"""The benchmark of false drains: a node's state is what its events make of it, for laggard and for others' rules."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from drains.events import HOUR
from drains.faults import FAULTS, NOT_SIMULATED
from drains.fleet import KINDS
from drains.laggard import Laggard
from drains.machine import Laid
from drains.report import wrongs
from drains.score import Fleet, catches, poisson_interval
from drains.states import CLASSES, Judge, Shown, State, can_have
from drains.stream import Instance, Node, spans

from laggard.probes.registry import PROBES

NUMBERS = {one.name: number for number, one in enumerate(CLASSES)}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(7, tmp_path_factory.mktemp("nodes"))


def state(kind: str, *names: str, variant: int = 0, span: int = 0) -> State:
    return kind, tuple(sorted(Shown(NUMBERS[name], variant, span) for name in names))


def first_spans(judge: Judge, kind: str) -> Iterator[State]:
    for event in can_have(kind):
        yield kind, (Shown(event, 0, 0),)


def test_a_node_without_events_is_healthy(judge: Judge) -> None:
    for kind in ("hgx_h100_roce", "hgx_h100_ib", "hgx_h100_r535"):
        assert not judge.laggard((kind, ())).critical


def test_the_node_is_as_it_was_after_each_look(judge: Judge) -> None:
    kind = "hgx_h100_roce"
    before = contents(judge.base(kind).root)
    for one in first_spans(judge, kind):
        with Laid(judge.machine(one)):
            pass
    assert contents(judge.base(kind).root) == before


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path): path.readlink().as_posix().encode() if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() or path.is_symlink()
    }


@pytest.mark.parametrize("kind", ["hgx_h100_r535", "cloud_guest_l40s", "workstation_boards"])
def test_no_probe_breaks_on_any_event(judge: Judge, kind: str) -> None:
    for one in first_spans(judge, kind):
        broken = [reason for reason in judge.laggard(one).cannot if "failed:" in reason]
        assert not broken, judge.says(one)


def test_each_fault_of_the_trace_is_caught_by_laggard(judge: Judge) -> None:
    for one in FAULTS:
        if one.name in (
            "machine check",
            "file system read-only",
            "NIC lost",
        ):  # without a trace in some variants: --list
            continue
        kind = (one.kinds or tuple(KINDS))[0]
        last = judge.spans_of(kind, NUMBERS[one.name], 0) - 1
        found = [judge.laggard(state(kind, one.name, span=span)).critical for span in range(last + 1)]
        assert any(found), judge.says(state(kind, one.name))


NHC, NPD = "NHC, by nhc-genconf", "node-problem-detector"


@pytest.mark.parametrize(
    ("tool", "name", "reason"),
    [
        (NHC, "mount of fstab missing", "check_fs_mount_rw"),
        (NHC, "memory missing", "check_hw_physmem"),
        (NHC, "rail down beside a spare of the same model", "check_hw_ib"),
        (NHC, "lines of fstab that are not mounted", ""),
        (NHC, "read-only by design", ""),
        (NHC, "cache disk full by design", ""),
        (NHC, "md array degraded", ""),
        (NHC, "memory full of cache, or of its job", ""),
        (NPD, "soft lockup that goes on", ""),
        (NPD, "job out of memory in its cgroup", ""),
        (NPD, "hung task that ended", ""),
    ],
)
def test_others_say_what_their_rules_say(judge: Judge, tool: str, name: str, reason: str) -> None:
    """An empty reason: they say nothing. A node's make is known to who configures a tool for it."""
    for variant in range(3):
        said = judge.answers(state("hgx_h100_roce", name, variant=variant))[tool]
        assert {one.split()[0] for one in said} == ({reason} if reason else set())


def test_counters_count_from_the_event_on(judge: Judge) -> None:
    """Symbol errors rise with time; an hour ago there were fewer, and that is what the history of looks holds."""
    name = "bits damaged"
    span = judge.spans_of("hgx_h100_ib", NUMBERS[name], 0) - 1
    now, then = (judge.machine(state("hgx_h100_ib", name, span=span), ago) for ago in (0.0, HOUR))
    ((path, count),) = ((path, text) for path, text in now.files.items() if path.endswith("symbol_error"))
    age = judge.age("hgx_h100_ib", Shown(NUMBERS[name], 0, span))
    assert int(count) - int(then.read(path)) == pytest.approx(int(count) * HOUR / age, rel=0.01)


def test_a_year_of_a_node(judge: Judge) -> None:
    kind, name, hang = "cloud_guest_l40s", "app: killed (Xid 45)", "disk full"
    node = Node(kind, (Instance(1000.0, NUMBERS[name], 0), Instance(50_000.0, NUMBERS[hang], 0)))
    year = spans(judge, node)
    assert year[0].begin == 0 and year[-1].end == 365 * 24 * HOUR
    assert all(one.end == other.begin for one, other in zip(year, year[1:], strict=False))
    lasts = judge.variant(kind, NUMBERS[hang], 0).lasts
    assert sum(one.end - one.begin for one in year if one.fault) == pytest.approx(lasts)
    assert any(len(one.state[1]) == 2 for one in year)


def test_drains_and_catches_are_counted(judge: Judge) -> None:
    kind, churn, fault = "hgx_h100_roce", NUMBERS["app: killed (Xid 45)"], NUMBERS["port slow"]
    said = {churn: frozenset({"X a"}), fault: frozenset({"Z"})}
    shown = {at: [Shown(at, 0, span) for span in range(judge.spans_of(kind, at, 0))] for at in said}
    answers: dict[State, frozenset[str]] = {(kind, (one,)): said[at] for at, ones in shown.items() for one in ones}
    answers[kind, ()] = frozenset()
    nodes = [
        Node(kind, (Instance(1e6, churn, 0), Instance(9e6, churn, 0))),
        Node(kind, (Instance(1e6, fault, 0),)),
    ]
    year = Fleet(judge, answers)
    for node in nodes:
        year.add(node, spans(judge, node))
    lasts = judge.variant(kind, churn, 0).lasts / HOUR
    assert [(one.event, one.why) for one in year.drains] == [(CLASSES[churn].name, "X a")] * 2
    assert sum(one.hours for one in year.drains) == pytest.approx(2 * lasts)
    assert catches(judge, answers, nodes) == {CLASSES[fault].name: (1, 1, (30.0,))}
    (listed,) = wrongs(judge, answers)
    assert listed.split()[0] == "FALSE" and CLASSES[churn].name in listed


def test_the_interval_is_that_of_tables() -> None:
    """Garwood 1936; Ulm 1990: 0 events: 3.689; 10: 4.795 to 18.39."""
    assert poisson_interval(0) == (0.0, pytest.approx(3.689, abs=1e-3))
    assert poisson_interval(10) == (pytest.approx(4.795, abs=1e-3), pytest.approx(18.390, abs=1e-3))


def test_the_rates_of_faults_are_those_of_the_trace() -> None:
    """The counts that the classes name, and those left out, are all 584 of the trace."""
    counted = sum(int(one.prior.split(", ")[1].split(" of")[0]) for one in FAULTS if one.prior.startswith("Infinite"))
    assert counted + sum(NOT_SIMULATED.values()) == 584


def test_laggard_runs_all_probes_of_the_agent(judge: Judge) -> None:
    assert [probe.name for probe in Laggard(judge.base("cloud_guest_l40s")).probes] == [probe.name for probe in PROBES]
