"""Who hangs or died in a job without hooks: what NCCL RAS answers, through the agent's asker, to the verdict."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.fake_ras import FakeCommunicator, FakeRank, FakeRas

from laggard.agent.ras.asker import SETTLE_SECONDS, SPREAD_SECONDS, RasAsker
from laggard.collector.jobs.unseen import RasAnswer, launched_jobs
from laggard.collector.scrape.validation import validate_ranks
from laggard.locate.describe import sentence
from laggard.locate.hang.hangs import HUNG_LATE_SECONDS as HUNG_SECONDS
from laggard.locate.hang.launches import STANDSTILL_SECONDS, locate_launches
from laggard.locate.job_timings import NodeFindings
from laggard.model import Location, Verdict
from laggard.wire import encode
from laggard.wire.ranks import RanksDocument, RasSource

HOSTS = ("127.0.0.1", "203.0.113.1")
Job = Sequence[FakeCommunicator]
Findings = dict[str, tuple[str, ...]]


def ranks(*counts: int, **changes: Any) -> tuple[FakeRank, ...]:
    """Two ranks a host, in processes of their own, that have launched so many all-reduces."""
    return tuple(
        FakeRank(rank, HOSTS[rank // 2 % 2], 4_000_000 + rank, rank % 2, {"AllReduce": count}, **changes)
        for rank, count in enumerate(counts)
    )


def world(*counts: int, **changes: Any) -> FakeCommunicator:
    return FakeCommunicator(ranks(*counts, **changes), "0xabc")


class Watched:
    """A job of which the agent n0 asks every ten seconds, on a clock that the test moves."""

    def __init__(self, server: FakeRas) -> None:
        self.server, self.now = server, 1000.0
        self.asker = RasAsker("localhost", server.port, 10.0, list, clock=lambda: self.now)
        self.asker.step()
        self.now += SETTLE_SECONDS + SPREAD_SECONDS
        self.asker.step()

    def source(self) -> RasSource:
        """As the collector gets it: over the wire."""
        document = RanksDocument(node="n0", boot_id="b", next=0.0, ranks=(), ignored=(), ras=self.asker.source())
        source = validate_ranks(encode(document)).ras
        assert source is not None and source.state == "asked", source
        return source

    def after(
        self, seconds: float, job: Job | None = None, findings: dict[str, NodeFindings] | None = None
    ) -> Location:
        """The verdict after the job has stood like this for so long."""
        if job is not None:
            self.server.communicators = job
            self.now += 10
            self.asker.step()
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 10)
            self.asker.step()
        (launched,) = launched_jobs([RasAnswer("n0", self.source(), 0.0)])
        return locate_launches(launched, findings or {})


@pytest.fixture
def watch() -> Iterator[Callable[[Job], Watched]]:
    servers: list[FakeRas] = []

    def start(job: Job) -> Watched:
        servers.append(FakeRas(job))
        return Watched(servers[-1])

    yield start
    for server in servers:
        server.close()


Watch = Callable[[Job], Watched]


def kinds(location: Location) -> list[str]:
    return [note.kind for note in location.notes]


def test_a_rank_that_is_behind_while_nothing_goes_on_is_hung(watch: Watch) -> None:
    location = watch([world(9, 9, 8, 9)]).after(HUNG_SECONDS)
    (culprit,) = location.culprits
    assert (location.verdict, culprit.kind, culprit.ranks) == (Verdict.FAIL, "hung", (2,))
    assert (culprit.node, culprit.victims, culprit.confidence) == (HOSTS[1], (0, 1, 3), 0.6)
    assert "NCCL RAS" in culprit.evidence[0] and "8 collectives" in culprit.evidence[0]
    assert "4000002" in culprit.evidence[1]
    assert sentence(location) == "Rank 2 on 203.0.113.1 is hung: the others wait for it."
    assert (location.world_size, location.ranks_seen) == (4, 4)


def test_before_that_it_is_named_and_not_accused(watch: Watch) -> None:
    job = watch([world(9, 9, 8, 9)])
    early = job.after(STANDSTILL_SECONDS)
    assert (early.verdict, early.culprits, kinds(early)) == (Verdict.UNKNOWN, (), ["not_arrived", "launches_only"])
    assert early.notes[0].ranks == (2,)
    assert "launched 8 collectives in communicator 0xabc of 4 ranks, where 3 ranks launched 9" in early.notes[0].text


def test_counts_that_differ_in_one_answer_are_no_hang(watch: Watch) -> None:
    assert kinds(watch([world(9, 9, 8, 9)]).after(0)) == ["launches_only"]


def test_counts_that_differ_in_every_answer_and_go_on_are_no_hang(watch: Watch) -> None:
    job = watch([world(9, 9, 8, 9)])
    for step in range(1, 40):
        location = job.after(0, [world(9 + step, 9 + step, 8 + step, 9 + step)])
        assert (location.culprits, kinds(location)) == ((), ["launches_only"])


def test_equal_counts_say_nothing_and_are_not_ok(watch: Watch) -> None:
    location = watch([world(9, 9, 9, 9)]).after(1000)
    assert (location.verdict, location.culprits, kinds(location)) == (Verdict.UNKNOWN, (), ["launches_only"])
    assert sentence(location).startswith("Cannot tell: seen through NCCL RAS alone")


def test_who_is_behind_in_one_communicator_and_waits_in_another_is_a_victim(watch: Watch) -> None:
    in_world = ranks(9, 9, 8, 8)
    pair = [rank._replace(rank=at, counts={"AllGather": 5 - at}) for at, rank in enumerate(in_world[2:])]
    job = [FakeCommunicator(in_world, "0xabc"), FakeCommunicator(pair, "0x2")]
    (culprit,) = watch(job).after(HUNG_SECONDS).culprits
    assert culprit.ranks == (3,)
    assert "communicator 0x2 of 2 ranks" in culprit.evidence[0]
    assert culprit.evidence[1] == "there it is rank 1 of 2"


def test_ranks_that_wait_for_one_another_are_a_deadlock_and_none_is_accused(watch: Watch) -> None:
    one, other = ranks(5, 4), ranks(4, 5)
    location = watch([FakeCommunicator(one, "0x1"), FakeCommunicator(other, "0x2")]).after(HUNG_SECONDS)
    assert (location.verdict, location.culprits) == (Verdict.FAIL, ())
    assert kinds(location)[0] == "deadlock"
    assert location.notes[0].ranks == (0, 1)


def test_other_collectives_on_one_rank_are_told_as_that(watch: Watch) -> None:
    odd = FakeRank(3, HOSTS[1], 4_000_003, 1, {"AllReduce": 8, "Broadcast": 1})
    location = watch([FakeCommunicator((*ranks(9, 9, 9), odd))]).after(HUNG_SECONDS)
    assert (location.verdict, location.culprits, kinds(location)[0]) == (Verdict.FAIL, (), "launches_differ")
    assert location.notes[0].ranks == (3,)


def test_a_rank_that_is_behind_here_and_goes_on_elsewhere_is_not_hung(watch: Watch) -> None:
    def job(step: int) -> Job:
        busy = [rank._replace(counts={"AllGather": step}) for rank in ranks(0, 0, 0, 0)]
        return [world(9, 9, 8, 9), FakeCommunicator(busy, "0x2")]

    watched = watch(job(0))
    for step in range(1, 30):
        location = watched.after(0, job(step))
        assert location.culprits == ()


@pytest.mark.parametrize("change", [{"init_state": 7}, {"finalize_called": True}])
def test_a_communicator_that_begins_or_ends_accuses_nobody(watch: Watch, change: dict[str, Any]) -> None:
    missing = FakeRank(4, HOSTS[1], 77, missing=True, dead=True)
    job = [FakeCommunicator((*ranks(9, 9, 8, 9, **change), missing))]
    location = watch(job).after(HUNG_SECONDS + 60)
    assert (location.verdict, location.culprits) == (Verdict.UNKNOWN, ())


def test_a_peer_that_nccl_considers_dead_is_dead(watch: Watch) -> None:
    dead = FakeRank(3, HOSTS[1], 77, 1, missing=True, dead=True)
    location = watch([FakeCommunicator((*ranks(9, 9, 9), dead))]).after(0)
    (culprit,) = location.culprits
    assert (location.verdict, culprit.kind, culprit.ranks, culprit.node) == (Verdict.FAIL, "dead", (3,), HOSTS[1])
    assert (culprit.confidence, culprit.victims) == (0.7, (0, 1, 2))
    assert culprit.evidence[0].startswith("NCCL RAS considers its process dead")
    assert location.ranks_seen == 3


def test_where_half_are_not_reached_the_network_may_be_the_cause(watch: Watch) -> None:
    dead = [FakeRank(rank, HOSTS[1], 70 + rank, missing=True, dead=True) for rank in (2, 3)]
    (culprit,) = watch([FakeCommunicator((*ranks(9, 9), *dead))]).after(0).culprits
    assert (culprit.ranks, culprit.confidence) == ((2, 3), 0.4)
    assert "network" in culprit.evidence[-1]


def test_a_peer_that_only_does_not_answer_is_told_of(watch: Watch) -> None:
    silent = FakeRank(3, HOSTS[1], 77, missing=True)
    location = watch([FakeCommunicator((*ranks(9, 9, 9), silent))]).after(30)
    assert (location.verdict, location.culprits, kinds(location)[0]) == (Verdict.UNKNOWN, (), "unresponsive")
    assert location.notes[0].text == "rank 3 on 203.0.113.1 does not answer NCCL RAS for 30 s"


def test_a_peer_that_answers_and_has_left_is_fine(watch: Watch) -> None:
    left = FakeRank(3, HOSTS[1], 77, missing=True, unresponsive=False)
    location = watch([FakeCommunicator((*ranks(9, 9, 9), left))]).after(HUNG_SECONDS)
    assert (location.culprits, kinds(location)) == ((), ["launches_only"])


def test_a_process_that_the_agent_sees_gone_is_dead_at_once_and_its_node_named(watch: Watch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        here = FakeRank(3, "127.0.0.1", process.pid, 1, {"AllReduce": 9})
        job = watch([FakeCommunicator((*ranks(9, 9, 9), here))])
    finally:
        process.kill()
        process.wait()
    gone = here._replace(missing=True, counts={})
    (culprit,) = job.after(0, [FakeCommunicator((*ranks(9, 9, 9), gone))], {"n0": NodeFindings(("GPU_LOST",))}).culprits
    assert (culprit.kind, culprit.ranks, culprit.node, culprit.confidence) == ("dead", (3,), "n0", 0.9)
    assert culprit.findings == ("GPU_LOST",)


def test_an_error_that_nccl_reports_is_told(watch: Watch) -> None:
    failed = FakeRank(3, HOSTS[1], 77, 1, {"AllReduce": 9}, async_error=2)
    location = watch([FakeCommunicator((*ranks(9, 9, 9), failed))]).after(0)
    assert (location.verdict, kinds(location)[0]) == (Verdict.FAIL, "nccl_error")
    assert location.notes[0].text == f"NCCL reports an error on rank 3 on {HOSTS[1]}: system error"


def test_one_process_with_all_gpus_of_a_node_is_several_ranks(watch: Watch) -> None:
    job = [FakeRank(rank, HOSTS[rank // 4], 77, rank % 4, {"AllReduce": 8 if rank == 6 else 9}) for rank in range(8)]
    (culprit,) = watch([FakeCommunicator(job)]).after(HUNG_SECONDS).culprits
    assert (culprit.ranks, culprit.gpu) == ((6,), "2")


def test_the_newest_answer_counts_and_an_old_one_does_not(watch: Watch) -> None:
    hung = watch([world(9, 9, 8, 9)])
    hung.after(HUNG_SECONDS)
    going = watch([world(9, 9, 8, 9)])
    going.after(0, [world(10, 10, 10, 10)])
    (job,) = launched_jobs([RasAnswer("n0", hung.source(), 30.0), RasAnswer("n1", going.source(), 0.0)])
    assert locate_launches(job, {}).culprits == ()
    assert launched_jobs([RasAnswer("n0", hung.source(), 200.0)]) == ()
