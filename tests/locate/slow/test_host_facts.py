"""Slow ranks whose threads wait for a CPU: the host is named, and by how much it holds them up."""

import pytest
from support.timings import of_states

from laggard.locate.job_timings import RankState
from laggard.locate.slow.host_facts import NOT_KNOWN, with_host_facts
from laggard.model import CpuNeighbour, Culprit
from laggard.wire.ranks import CpuWait

CALM = CpuWait(10.0, 9.0, 0.2, 0.0)


def explained(
    slow: CpuWait | None,
    *others: CpuWait | None,
    kind: str = "slow_compute",
    live: bool = False,
    state: str = "running",
    cost: float | None = None,
) -> Culprit:
    states = [RankState(state, 7, "forward", None, cpu_wait=wait) for wait in (slow, *others)]
    culprit = Culprit(kind=kind, ranks=(0,), node="n0", evidence=("busier",), recoverable_ratio=cost)
    (found,) = with_host_facts(of_states(states, live=live), (culprit,))
    return found


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (CpuWait(10.0, 3.0, 6.5, 0.0), "waited for a CPU for 6.50 s in 10 s, its peers' for 0.20 s"),
        (CpuWait(10.0, 3.0, 0.1, 6.9), "quota held it back for 6.90 s of 10 s"),
    ],
)
def test_a_host_that_holds_a_rank_up_is_named_with_by_how_much(wait: CpuWait, words: str) -> None:
    found = explained(wait, CALM, CALM)
    assert found.kind == "slow_host" and words in found.evidence[0] and found.evidence[1] == "busier"


@pytest.mark.parametrize(
    "waits",
    [
        (CALM, CALM, CALM),  # slow for another reason
        (None, CALM, CALM),  # nothing is known of it
        (CpuWait(10.0, 5.0, 4.0, 0.0), CpuWait(10.0, 5.0, 4.0, 0.0)),  # its peers wait as long
        (CpuWait(10.0, 0.1, 0.3, 0.0), CALM),  # it hardly asks for a CPU: a rank that sleeps
    ],
)
def test_without_such_a_fact_the_kind_stays(waits: tuple[CpuWait | None, ...]) -> None:
    found = explained(*waits)
    assert found.kind == "slow_compute" and found.evidence == ("busier",)


@pytest.mark.parametrize(
    ("slow", "usual", "cost", "kind"),
    [
        (CpuWait(6.2, 0.4, 3.35, 0.0), CpuWait(6.2, 0.4, 0.44, 0.0), 0.15, "slow_host"),  # three hogs on its core
        (CpuWait(6.2, 0.8, 0.35, 0.0), CpuWait(6.2, 0.8, 0.1, 0.0), 0.69, "slow_compute"),  # a sleep() costs far more
        (CpuWait(6.2, 0.8, 1.10, 0.0), CpuWait(6.2, 0.8, 1.0, 0.0), 0.03, "slow_compute"),  # hardly more than all have
    ],
)
def test_what_a_rank_misses_of_the_cpu_beyond_its_peers_must_be_what_it_costs(
    slow: CpuWait, usual: CpuWait, cost: float, kind: str
) -> None:
    assert explained(slow, usual, usual, cost=cost).kind == kind


def test_who_runs_on_the_cores_is_named_and_a_hypervisor_that_takes_them() -> None:
    hogs = (CpuNeighbour(4711, 1000, 4.1, "st\x1bress"), CpuNeighbour(4712, 1001, 2.0))
    found = explained(CpuWait(10.0, 3.0, 6.5, 0.0, 0.0, hogs), CALM, CALM)
    words = "process 4711 (st ress) of user 1000 ran 4.10 s and process 4712 of user 1001 ran 2.00 s on its cores"
    assert found.evidence[0].endswith(words)
    stolen = explained(CpuWait(10.0, 6.0, 0.2, 0.0, 3.5), CALM, CALM)
    assert stolen.kind == "slow_host" and "(steal)" in stolen.evidence[0] and "3.50 s of 10 s" in stolen.evidence[0]


def test_of_a_live_job_it_is_told_that_the_fact_is_not_known_yet() -> None:
    first, later = explained(None, CALM, CALM, live=True), explained(CALM, CALM, CALM, live=True)
    assert first.kind == later.kind == "slow_compute"
    assert first.evidence == ("busier", NOT_KNOWN) and later.evidence == ("busier",)
    assert explained(None, CALM, CALM, live=True, state="finished").evidence == ("busier",)


def test_a_hung_rank_is_not_called_slow() -> None:
    assert explained(CpuWait(10.0, 3.0, 6.5, 0.0), CALM, kind="hung").kind == "hung"
