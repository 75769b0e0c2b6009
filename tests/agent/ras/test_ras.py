"""NCCL RAS at the agent: who is asked and how often, what is believed, and what stands in the ranks document."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
from support.fake_ras import FakeCommunicator, FakeRank, FakeRas, status_json
from support.paths import DATA
from support.rows import rows

from laggard.agent.ras.answer import parse
from laggard.agent.ras.asker import MIN_INTERVAL_SECONDS, SETTLE_SECONDS, SPREAD_SECONDS, RasAsker
from laggard.nccl.ras import LIMITS, Limits
from laggard.wire.ranks import RasCommunicator, RasJob, RasSource

AWAY = "203.0.113.7"  # an address for documentation (RFC 5737), of no machine
SETTLED = SETTLE_SECONDS + SPREAD_SECONDS
QUICK = Limits(seconds=1.0, bytes=1 << 20)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., FakeRas]


@pytest.fixture
def ras() -> Iterator[Make]:
    made: list[FakeRas] = []

    def make(*args: Any, **kwargs: Any) -> FakeRas:
        made.append(FakeRas(*args, **kwargs))
        return made[-1]

    yield make
    for server in made:
        server.close()


class Agent:
    """An asker with a clock that the test moves."""

    def __init__(self, port: int, hooked: Sequence[tuple[int, int]] = (), limits: Limits = LIMITS) -> None:
        self.clock, self.hooked = Clock(), list(hooked)
        self.asker = RasAsker(
            "localhost", port, MIN_INTERVAL_SECONDS, lambda: self.hooked, clock=self.clock, limits=limits
        )
        self.asker.step()

    def later(self, seconds: float) -> RasSource:
        self.clock.now += seconds
        self.asker.step()
        return self.asker.source()

    def job(self, seconds: float) -> RasJob:
        source = self.later(seconds)
        assert source.state == "asked", source.reason
        (job,) = source.jobs
        return job

    def communicator(self, seconds: float) -> RasCommunicator:
        (communicator,) = self.job(seconds).communicators
        return communicator


def ranks(*counts: int, pid: int = 4_000_000, host: str = "127.0.0.1") -> tuple[FakeRank, ...]:
    """Ranks 0, 1, ... of processes of their own, that have launched so many all-reduces."""
    return tuple(
        FakeRank(rank, host, pid + rank, rank, {"Broadcast": 1, "AllReduce": count})
        for rank, count in enumerate(counts)
    )


def test_the_answer_of_a_real_nccl_is_read() -> None:
    """Of one rank on an H100: NCCL counts no collective of a communicator of one rank."""
    answer = parse((DATA / "ras" / "nccl_2.28.9.json").read_bytes())
    (communicator,) = answer.communicators
    (rank,) = communicator.ranks
    assert (answer.nccl_version, communicator.size, rank.host) == ("2.28.9", 1, "192.0.2.2")
    assert rank.collective_counts["AllReduce"] == 0 and not communicator.missing_ranks


def test_a_job_is_reported_with_who_is_behind_since_when(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(7, 7, 6, 7))])
    agent = Agent(server.port)
    first = agent.communicator(SETTLED)
    assert (first.size, first.answered, first.at_front) == (4, 4, 3)
    assert first.launches == {"Broadcast": 1, "AllReduce": 7}
    assert (first.unchanged_seconds, first.readings) == (0.0, 1)
    behind = first.ranks[0]
    assert (behind.rank, behind.pid, behind.gpu, behind.launches["AllReduce"]) == (2, 4_000_002, 2, 6)
    second = agent.communicator(10)
    assert (second.unchanged_seconds, second.readings) == (10.0, 2)
    assert (second.ranks[0].unchanged_seconds, second.ranks[0].readings) == (10.0, 2)


def test_counts_that_move_on_are_not_still(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(7, 7, 6, 7))])
    agent = Agent(server.port)
    agent.job(SETTLED)
    server.communicators = [FakeCommunicator(ranks(8, 8, 7, 8))]
    moved = agent.communicator(10)
    assert (moved.unchanged_seconds, moved.readings) == (0.0, 1)
    assert agent.communicator(10).unchanged_seconds == 10.0


def test_a_device_that_goes_on_in_another_communicator_is_not_still(ras: Make) -> None:
    def job(other: int) -> list[FakeCommunicator]:
        return [FakeCommunicator(ranks(7, 6)), FakeCommunicator(ranks(other, other), "0x2")]

    server = ras(job(100))
    agent = Agent(server.port)
    agent.job(SETTLED)
    server.communicators = job(120)
    world = next(it for it in agent.job(10).communicators if it.id.startswith("0xae"))
    assert world.unchanged_seconds == 10.0
    assert {rank.unchanged_seconds for rank in world.ranks} == {0.0}


def test_the_job_is_the_listeners_user_s_and_named_after_its_largest_communicator(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(1), "0x1"), FakeCommunicator(ranks(1, 1), "0xabc")])
    job = Agent(server.port).job(SETTLED)
    assert (job.job_id, job.owner, job.nccl_version) == ("nccl-abc", os.geteuid(), "2.30.7")
    assert job.local_hosts == ("127.0.0.1",)


def test_ranks_like_all_others_on_other_nodes_are_counted_and_not_listed(ras: Make) -> None:
    away = ranks(*[5] * 1000, host=AWAY)
    communicator = Agent(ras([FakeCommunicator(away)]).port).communicator(SETTLED)
    assert (communicator.at_front, communicator.ranks) == (1000, ())


def test_missing_and_dead_ranks_are_listed_also_by_an_nccl_that_forgets_a_comma(ras: Make) -> None:
    dead = FakeRank(2, AWAY, 77, missing=True, dead=True)
    silent = FakeRank(3, AWAY, 78, missing=True)
    for nccl in ((2, 28, 9), (2, 30, 7)):
        server = ras([FakeCommunicator((*ranks(5, 5), dead, silent))], nccl=nccl)
        communicator = Agent(server.port).communicator(SETTLED)
        missing = [(it.rank, it.pid, it.dead, it.unresponsive) for it in communicator.ranks if it.missing]
        assert missing == [(2, 77, True, True), (3, 78, False, True)], nccl


def test_a_stopped_process_of_this_node_is_seen_and_so_is_its_end(ras: Make) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        gone = FakeRank(1, "127.0.0.1", process.pid, missing=True)
        server = ras([FakeCommunicator((FakeRank(0, pid=os.getpid()), gone))])
        agent = Agent(server.port)
        assert {it.rank: it.process for it in agent.communicator(SETTLED).ranks} == {0: "running", 1: "stopped"}
    finally:
        process.kill()
        process.wait()
    assert {it.rank: it.process for it in agent.communicator(10).ranks} == {0: "running", 1: "gone"}


def test_a_process_that_was_never_seen_is_not_gone(ras: Make) -> None:
    assert Agent(ras([FakeCommunicator(ranks(1))]).port).communicator(SETTLED).ranks[0].process == ""


def test_nobody_is_asked_in_the_first_minute(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(1))])
    agent = Agent(server.port)
    assert agent.later(SETTLE_SECONDS - 1).state == "waiting"
    assert server.commands == []


def test_a_new_process_that_listens_beside_others_is_waited_for(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(1))])
    agent = Agent(server.port)
    agent.job(SETTLED)
    ras([FakeCommunicator(ranks(1))], port=server.port)
    asked = len(server.commands)
    assert agent.later(10).state == "waiting"
    assert len(server.commands) == asked


def test_a_job_that_says_it_is_being_initialised_is_left_alone_for_a_minute(ras: Make) -> None:
    server = ras([FakeCommunicator((FakeRank(0, init_state=7),))])
    agent = Agent(server.port)
    assert agent.communicator(SETTLED).starting
    agent.later(SETTLE_SECONDS - 1)
    assert server.commands.count("STATUS") == 1
    agent.later(2)
    assert server.commands.count("STATUS") == 2


def test_the_first_node_asks_every_interval_and_the_third_one_rarely(ras: Make) -> None:
    two_before = [FakeRank(0, "203.0.113.1", 1), FakeRank(1, "203.0.113.2", 1), FakeRank(2, "127.0.0.1", 4_000_000)]
    for job, questions in ((ranks(1, 1, 1), 19), (two_before, 3)):
        server = ras([FakeCommunicator(job)])
        agent = Agent(server.port)
        agent.later(SETTLED)
        for _ in range(36):
            agent.later(5)
        assert server.commands.count("STATUS") == questions


def test_processes_with_rank_files_are_left_to_them(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(7, 6))])
    me = os.geteuid()
    agent = Agent(server.port, [(me, 4_000_000)])
    assert agent.later(SETTLED).state == "hooked"
    assert server.commands == []
    agent.hooked = [(me + 1, 4_000_000)]
    assert agent.later(10).state == "asked"


def test_a_communicator_whose_local_processes_have_rank_files_is_left_out(ras: Make) -> None:
    unhooked = FakeCommunicator(ranks(3, pid=4_000_100), "0x2")
    server = ras([FakeCommunicator(ranks(7, 6)), unhooked])
    ras([], port=server.port).close()
    others = [ras(server.communicators, port=server.port) for _ in range(2)]
    agent = Agent(server.port, [(os.geteuid(), 4_000_000), (os.geteuid(), 4_000_001)])
    assert [it.id.partition("/")[0] for it in agent.job(SETTLED).communicators] == ["0x2"]
    assert len(others) == 2


def test_rccl_is_read_as_nccl_is(ras: Make) -> None:
    """Its JSON has its own version, HIP's in the place of CUDA's, and operations that NCCL does not count."""
    body = status_json([FakeCommunicator(ranks(7, 7, 6))], (2, 30, 4))
    body = body.replace(b'_version": 13000', b'_version": 70226015')
    body = body.replace(b'"AllReduce": ', b'"Gather": 0,\n            "AllToAllv": 0,\n            "AllReduce": ')
    answer = parse(body)
    assert answer.nccl_version == "2.30.4"
    counts = [rank.collective_counts for rank in answer.communicators[0].ranks]
    assert [each["AllReduce"] for each in counts] == [7, 7, 6] and counts[0]["AllToAllv"] == 0


def test_an_nccl_before_json_is_never_asked_for_its_status(ras: Make) -> None:
    server = ras([FakeCommunicator(ranks(1))], nccl=(2, 27, 7))
    agent = Agent(server.port)
    source = agent.later(SETTLED)
    assert (source.state, source.jobs) == ("too_old", ())
    assert "2.28.7" in source.reason
    assert agent.later(600).state == "too_old"
    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json"]


def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert Agent(closed.getsockname()[1]).later(SETTLED).state == "no_job"


def _endless(connection: socket.socket) -> None:
    while True:
        connection.sendall(b'{"nccl_version": "' + b"2" * 65_536)


def _silent(connection: socket.socket) -> None:
    connection.recv(1)


def _trickle(connection: socket.socket) -> None:
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [(_endless, "longer than 1048576 bytes"), (_silent, "within 1 s"), (_trickle, "within 1 s")],
)
def test_an_answer_without_end_is_given_up(ras: Make, misbehave: Any, reason: str) -> None:
    limits = QUICK._replace(seconds=60.0) if misbehave is _endless else QUICK
    agent = Agent(ras(misbehave=misbehave).port, limits=limits)
    source = agent.later(SETTLED)
    assert (source.state, source.jobs) == ("failed", ())
    assert reason in source.reason


def refused(ras: Make, body: bytes, reason: str) -> None:
    server = ras(body=body)
    agent = Agent(server.port)
    source = agent.later(SETTLED)
    assert (source.state, source.jobs) == ("failed", ())
    assert reason in source.reason
    agent.later(10)
    assert server.commands.count("STATUS") == 1, "it is left alone for a while"


WHOLE = status_json([FakeCommunicator(ranks(7, 6))])


@rows("agent/absurd_ras")
def test_an_absurd_answer_is_refused_as_a_whole(ras: Make, old: str, new: str, reason: str) -> None:
    assert old in WHOLE.decode()
    refused(ras, WHOLE.replace(old.encode(), new.encode(), 1), reason)


@pytest.mark.parametrize(
    "body",
    [
        WHOLE[:-300],
        b" ",
        b"NCCL version 2.27.7 compiled with CUDA 12.9\n",
        b"[" * 500_000,
        WHOLE.replace(b'"nccl_version"', b'"unknown": ' + b"[" * 500_000 + b"]" * 500_000 + b', "nccl_version"'),
    ],
    ids=["cut off", "empty", "text", "brackets", "nested"],
)
def test_a_torn_answer_is_refused_as_a_whole(ras: Make, body: bytes) -> None:
    refused(ras, body, "JSON")


def test_a_communicator_that_stands_there_twice_is_refused(ras: Make) -> None:
    refused(ras, status_json([FakeCommunicator(ranks(7))] * 2), "stands there twice")


def test_what_does_not_speak_the_protocol_is_let_go() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = Agent(listener.getsockname()[1], limits=QUICK)
        listener.listen()
        assert source.later(SETTLED).state == "failed"


def test_a_kernel_that_does_not_tell_is_not_taken_for_nobody(monkeypatch: pytest.MonkeyPatch, ras: Make) -> None:
    def refuse(port: int) -> NoReturn:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    agent = Agent(ras([FakeCommunicator(ranks(7, 7))]).port)
    monkeypatch.setattr("laggard.agent.ras.asker.listening_sockets", refuse)
    source = agent.later(SETTLED)
    assert (source.state, source.jobs) == ("failed", ())
    assert source.reason == "the kernel does not tell who listens: Operation not permitted"
