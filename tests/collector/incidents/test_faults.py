"""Faults of nodes: opened, repaired, taken back, come back; under new names, with other GPUs, over clocks set back."""

from collections.abc import Sequence

import pytest
from support.stores import open_store

from laggard.collector.incidents.fault_tracker import FaultTracker, node_sight
from laggard.collector.incidents.identity import MAX_NAMES_OF_GPU, MachineNames
from laggard.collector.incidents.incident import Fault, Moment, NodeName, NodeSight, SeenFinding
from laggard.collector.incidents.reads import read_faults, read_machine
from laggard.collector.incidents.store import Batch
from laggard.collector.node_history import failures, offenders
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict

WALL = 1.79e9
DAY = 86400.0
GPUS = ("GPU-a", "GPU-b")


def seen(code: str = "GPU_ECC_UNCORRECTED", device: str = "GPU 0", gpu: str = "", **changes: object) -> SeenFinding:
    severity = changes.pop("severity", Severity.CRITICAL)
    detail = str(changes.pop("detail", ""))
    finding = Finding(code, severity, device, f"{code} there", {}, Fix("Mend it."), "")  # type: ignore[arg-type]
    return SeenFinding(finding, "gpu_ecc", gpu, detail)


class Watch:
    """A tracker, and the time."""

    def __init__(self, wall: float = WALL) -> None:
        self.wall, self.at = wall, 0.0
        self.tracker = FaultTracker(300.0, Moment(wall, 0.0))
        self.stored: dict[int, Fault] = {}
        self.names: list[NodeName] = []

    def look(self, *found: SeenFinding, node: str = "n1", gpus: Sequence[str] = GPUS, after: float = 60.0,
             telling: bool = True, taken_back: frozenset[tuple[str, str]] = frozenset()) -> None:  # fmt: skip
        self.at += after
        tells = frozenset(("gpu_ecc",)) if telling else frozenset()
        sight = NodeSight(node, frozenset(gpus), found, tells, taken_back)
        changed, names = self.tracker.observe([sight], Moment(self.wall + self.at, self.at))
        self.stored |= {it.id: it for it in changed}
        self.names += names

    def quiet(self, seconds: float = 600.0, **changes: object) -> None:
        for _ in range(int(seconds // 60)):
            self.look(**changes)  # type: ignore[arg-type]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_a_finding_that_goes_was_repaired(watch: Watch) -> None:
    watch.look(seen())
    watch.look(seen())
    watch.quiet()
    (fault,) = watch.stored.values()
    assert (fault.closed_because, fault.closed_at) == ("repaired", WALL + 120) and fault.is_failure
    assert watch.tracker.open == ()


def test_a_check_that_cannot_tell_repairs_nothing(watch: Watch) -> None:
    watch.look(seen())
    watch.quiet(1200, telling=False)
    assert len(watch.tracker.open) == 1
    watch.look(seen())
    watch.quiet(240)
    watch.look(seen())
    assert len(watch.stored) == 1, "a finding that is left out for less than the quiet time is one fault"


def test_what_comes_back_within_a_week_says_so(watch: Watch) -> None:
    watch.look(seen())
    watch.quiet()
    watch.look(seen(), after=2 * DAY)
    (again,) = watch.tracker.open
    assert again.returned is not None and again.returned.times == 1
    watch.quiet()
    watch.look(seen(), after=8 * DAY)
    assert watch.tracker.open[0].returned is None, "a repair that held for a week was one"


def test_another_gpu_of_the_machine_is_another_fault(watch: Watch) -> None:
    watch.look(seen(gpu="GPU-a"))
    watch.quiet()
    watch.look(seen(gpu="GPU-b", device="GPU 1"))
    assert watch.tracker.open[0].returned is None


def test_an_xid_that_a_later_one_takes_back_is_no_failure(watch: Watch) -> None:
    watch.look(seen("GPU_XID", detail="163"))
    watch.look(taken_back=frozenset((("GPU_XID", "163"),)))
    (fault,) = watch.stored.values()
    assert fault.closed_because == "cancelled" and not fault.is_failure
    watch.look(seen("GPU_XID", detail="163"))
    assert watch.tracker.open[0].returned is None, "what never was does not come back"


def test_an_xid_that_nothing_confirms_is_no_failure(watch: Watch) -> None:
    watch.look(seen("GPU_XID", severity=Severity.WARNING))
    assert not watch.tracker.open[0].is_failure
    watch.look(seen("GPU_XID"))
    assert watch.tracker.open[0].is_failure, "it is, once the driver confirms it"


def test_a_machine_keeps_its_history_under_another_name(watch: Watch) -> None:
    watch.look(seen())
    watch.quiet()
    watch.look(node="n7")
    watch.look(seen(), node="n7")
    (again,) = watch.tracker.open
    assert (again.node, again.machine) == ("n7", "GPU-a") and again.returned is not None


def test_an_open_fault_goes_along_to_the_new_name(watch: Watch) -> None:
    watch.look(seen())
    watch.look(seen(), node="n7")
    (fault,) = watch.tracker.open
    assert (fault.node, fault.opened_at) == ("n7", WALL + 60)


def test_another_machine_under_the_name_has_its_own_history(watch: Watch) -> None:
    watch.look(seen())
    watch.look(seen(), gpus=("GPU-x", "GPU-y"))
    (fault,) = watch.tracker.open
    assert (fault.machine, fault.returned) == ("GPU-x", None)
    assert [it.closed_because for it in watch.stored.values() if it.closed_at] == ["replaced"]


def test_a_gpu_that_was_replaced_or_is_lost_makes_no_other_machine(watch: Watch) -> None:
    watch.look(seen())
    watch.look(seen(), gpus=("GPU-a", "GPU-new"))
    watch.look(seen(), gpus=())
    watch.look(seen(), gpus=("GPU-new",))
    assert len(watch.tracker.open) == 1 and watch.tracker.open[0].machine == "GPU-a"


def test_a_machine_whose_gpus_were_not_known_is_the_same_when_they_are(watch: Watch) -> None:
    watch.look(seen(), gpus=())
    watch.look(seen())
    (fault,) = watch.tracker.open
    assert (fault.machine, fault.opened_at) == ("GPU-a", WALL + 60)


def test_a_clock_that_is_set_back_lets_nothing_end_before_it_began(watch: Watch) -> None:
    watch.look(seen())
    watch.wall -= 3 * DAY
    watch.quiet()
    (fault,) = watch.stored.values()
    assert fault.closed_at is not None and fault.closed_at >= fault.opened_at
    watch.look(seen())
    (again,) = watch.tracker.open
    assert again.id > fault.id and again.returned is not None and again.returned.ended_at <= again.opened_at


def test_a_machine_that_is_silent_for_a_week_is_gone(watch: Watch) -> None:
    watch.look(seen())
    watch.look(node="other", gpus=("GPU-o",), after=8 * DAY)
    assert [it.closed_because for it in watch.stored.values()] == ["gone"]


def test_a_flood_of_findings_is_bounded(watch: Watch) -> None:
    watch.look(*(seen(device=f"GPU {n}" * 500) for n in range(2000)))
    assert len(watch.tracker.open) == 128 and all(len(it.device) <= 400 for it in watch.tracker.open)


def test_failures_that_overlap_are_one() -> None:
    def fault(begin: float, end: float | None, code: str = "GPU_LOST") -> Fault:
        return Fault(int(begin), "n1", "m", code, "GPU 0", Severity.CRITICAL, "", "p", begin, begin, closed_at=end,
                     closed_because=None if end is None else "repaired")  # fmt: skip

    found = failures([fault(100, 200), fault(150, 300, "GPU_XID"), fault(1000, 1100)], 0.0, 2000.0)
    assert found.down == ((100, 300), (1000, 1100))
    assert (found.mttr_seconds, found.mtbf_seconds) == (150, (2000 - 300) / 2)
    assert failures([fault(100, None)], 0.0, 1000.0).mttr_seconds is None, "it is not over yet"
    (often,) = offenders([fault(100, 110), fault(500, 510), fault(900, 910)], 0.0, 1000.0, 10)
    assert often.node == "n1" and often.failures.lately == 3


def test_faults_outlive_the_collector(place: str, watch: Watch) -> None:
    path = place
    watch.look(seen())
    watch.quiet()
    watch.look(seen())
    database = open_store(path, 1 << 22)
    database.write(Batch(faults=tuple(watch.stored.values()), names=watch.names), WALL)
    rows = database.nodes(WALL - 7 * DAY)
    assert len(rows.faults) == 1 and len(rows.ended) == 1 and rows.names[0].machine == "GPU-a"
    second = FaultTracker(300.0, Moment(WALL + 800, 0.0), rows.faults, rows.names)
    second.remember(rows.ended)
    assert second.observe([NodeSight("n1", frozenset(GPUS), (seen(),), frozenset(("gpu_ecc",)))],
                          Moment(WALL + 900, 60.0))[0] != [], "it goes on"  # fmt: skip
    assert [it.id for it in second.open] == [rows.faults[0].id]
    database.close()
    assert (
        {it.id for it in read_machine(path, "n1", 10).faults}
        == set(watch.stored)
        == {it.id for it in read_faults(path, 0.0)}
    )


def test_the_database_bounds_faults(place: str) -> None:
    database = open_store(place)
    faults = tuple(
        Fault(n, "n1", "m", "GPU_XID", "GPU 0", Severity.CRITICAL, "", "p", WALL, WALL, closed_at=WALL)
        for n in range(400)
    )
    database.write(Batch(faults=faults), WALL)
    closed = database.nodes(0.0).ended
    assert len(closed) == (1 << 20) // 8 // 1024 and closed[-1].id == 399, "the newest stay"
    database.close()


def test_a_report_is_read_as_far_as_it_can_be() -> None:
    probes = (ProbeResult("gpu_xid", Verdict.FAIL, "", 0.1, (0,)), ProbeResult("gpu_ecc", Verdict.UNKNOWN, "", 0.1))
    finding = Finding("GPU_XID", Severity.WARNING, "GPU 0000:9b:00.0", "", {"xid": 79}, Fix(""), "")
    facts = {"gpu_count": {"uuids": {"GPU-a": {"bus_id": "0000:9b:00.0", "index": 0}}},
             "gpu_xid": {"xids_taken_back": {"163": 1}}}  # fmt: skip
    sight = node_sight("n1", Report(Verdict.FAIL, "n1", 0.1, probes, (finding,), facts))
    assert sight.gpus == frozenset(("GPU-a",)) and "gpu_ecc" not in sight.telling
    (found,) = sight.found
    assert (found.probe, found.gpu, found.detail) == ("gpu_xid", "GPU-a", "79")
    assert sight.cancelled == frozenset((("GPU_XID", "163"),))
    nonsense = node_sight("n1", Report(Verdict.OK, "n1", 0.1, (), (), {"gpu_xid": 7, "gpu_count": {"uuids": [1]}}))
    assert nonsense.cancelled == nonsense.gpus == frozenset()


def _sight(node: str, *gpus: str) -> NodeSight:
    return NodeSight(node, frozenset(gpus), (), frozenset(), frozenset())


def test_a_machine_is_found_by_any_half_of_its_gpus_among_many() -> None:
    names = MachineNames(NodeName(f"n{n}", f"GPU-{n}-0", 1.0, 1.0, (f"GPU-{n}-0", f"GPU-{n}-1")) for n in range(2000))
    names.observe([_sight("new", "GPU-7-1", "GPU-z")], 2.0)
    assert names.machine("new") == "GPU-7-0"
    names.observe([_sight("other", "GPU-8-1", "GPU-x", "GPU-y")], 3.0)
    assert names.machine("other") == "GPU-8-0", "half of the fewer"
    names.observe([_sight("third", "GPU-9-1", "GPU-p", "GPU-q", "GPU-r")], 3.0)
    names.observe([_sight("n9", "GPU-9-0", "GPU-9-1", "GPU-s", "GPU-t")], 3.0)
    assert names.machine("n9") == "GPU-9-0", "it keeps its own"


def test_gpus_that_left_a_machine_name_it_no_more() -> None:
    names = MachineNames()
    names.observe([_sight("n1", "GPU-a", "GPU-b")], 1.0)
    names.observe([_sight("n1", "GPU-x", "GPU-y")], 2.0)
    names.observe([_sight("n2", "GPU-a", "GPU-b")], 3.0)
    assert (names.machine("n1"), names.machine("n2")) == ("GPU-x", "GPU-a")
    names.observe([_sight("n3", "GPU-y", "GPU-x")], 4.0)
    assert names.machine("n3") == "GPU-x"


def test_many_agents_that_tell_of_one_gpu_are_not_compared_each_with_each() -> None:
    names = MachineNames()
    names.observe([_sight(f"n{number}", "GPU-a") for number in range(20_000)], 1.0)
    assert {names.machine(f"n{number}") for number in range(20_000)} == {"GPU-a"}
    names.observe([_sight(f"n{number}", f"GPU-{number}") for number in range(20_000)], 2.0)
    names.observe([_sight("again", "GPU-a")], 3.0)
    assert names.machine("again") == "GPU-a" and MAX_NAMES_OF_GPU < 100


def test_of_several_names_the_one_that_was_seen_last_counts() -> None:
    names = MachineNames(
        [NodeName("n1", "GPU-old", 1.0, 5.0, ("GPU-a",)), NodeName("n2", "GPU-a", 1.0, 9.0, ("GPU-a",))]
    )
    names.observe([_sight("n3", "GPU-a")], 10.0)
    assert names.machine("n3") == "GPU-a"
