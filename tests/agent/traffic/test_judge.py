"""When a running job is called one that fell back to TCP, from what was carried between two looks."""

from collections import Counter

import pytest

from laggard.agent.sock_diag import TcpSocket
from laggard.agent.traffic import sockets as peers
from laggard.agent.traffic.sockets import addresses_of, clients_of_store, named_hosts
from laggard.agent.traffic.watch import Look, TrafficWatch, falls_back, not_known, tcp_fallback, window_between
from laggard.wire.ranks import JobTraffic

MB = 10**6
OWN, PEER, STORE = "10.0.0.1", "10.0.0.2", "10.9.9.9"
PEERS = frozenset({OWN, PEER})


def connection(inode: int, remote: str, sent: int, received: int, port: int = 5000) -> TcpSocket:
    return TcpSocket(inode, OWN, remote, 4000, port, sent, received)


def look(at: float, *sockets: TcpSocket, rdma: int | None = 0, collectives: int = 0) -> Look:
    return Look(at, {each.inode: each for each in sockets}, rdma, collectives)


def window(**changes: object) -> JobTraffic:
    values = {
        "seconds": 30.0,
        "tcp_peer_bytes": 0,
        "tcp_other_bytes": 0,
        "rdma_bytes": 0,
        "collective_bytes": 9000 * MB,
    }
    return JobTraffic(**{**values, **changes})  # type: ignore[arg-type]


def test_what_was_carried_is_told_apart_by_the_other_side() -> None:
    before = look(0.0, connection(1, PEER, 100, 100), connection(2, STORE, 5, 50), rdma=7, collectives=10)
    now = look(
        30.0,
        connection(1, PEER, 1100, 600),
        connection(2, STORE, 6, 9050),
        connection(3, PEER, 20, 30),  # new
        connection(4, OWN, 10**9, 10**9),  # with itself
        rdma=17,
        collectives=4010,
    )
    assert window_between(before, now, PEERS) == JobTraffic(30.0, 1550, 9001, 10, 4000, (PEER,))


def test_an_inode_that_is_another_connection_by_now_has_carried_all_of_its_own() -> None:
    before, now = look(0.0, connection(1, PEER, 900, 900)), look(1.0, connection(1, PEER, 30, 40, port=6000))
    assert window_between(before, now, PEERS).tcp_peer_bytes == 70


def test_a_job_falls_back_that_exchanges_more_with_its_nodes_over_tcp_than_rdma_carries() -> None:
    assert falls_back(window(tcp_peer_bytes=900 * MB))
    assert falls_back(window(tcp_peer_bytes=900 * MB, rdma_bytes=5 * MB))
    assert not falls_back(window(tcp_peer_bytes=900 * MB, rdma_bytes=2000 * MB))


def test_what_is_no_fallback() -> None:
    assert not falls_back(window(tcp_peer_bytes=20 * MB))  # stores and heartbeats
    assert not falls_back(window(tcp_other_bytes=9000 * MB))  # storage
    assert not falls_back(window(tcp_peer_bytes=900 * MB, rdma_bytes=None))  # no RDMA device is up
    assert not falls_back(window(tcp_peer_bytes=900 * MB, collective_bytes=0))  # nothing ran


def test_storage_beside_rdma_is_known_and_strangers_without_rdma_are_not() -> None:
    assert not_known(window(tcp_other_bytes=900 * MB, rdma_bytes=5000 * MB)) == ""
    assert "may be the job's nodes or not" in not_known(window(tcp_other_bytes=900 * MB))
    assert not_known(window(tcp_other_bytes=900 * MB, rdma_bytes=None)) == ""
    assert not_known(window(tcp_peer_bytes=900 * MB, tcp_other_bytes=900 * MB)) == ""


def test_the_finding_says_how_much() -> None:
    found = tcp_fallback("17", window(tcp_peer_bytes=900 * MB, peers=(PEER,)))
    assert (found.code, found.device) == ("TCP_FALLBACK", "job 17")
    assert "30 MB/s with the job's other nodes over TCP" in found.summary and "0 MB/s" in found.summary
    assert found.evidence["nodes"] == [PEER]


def test_who_the_nodes_are() -> None:
    slurm = {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_JOB_NODELIST": "n[1-9]", "MASTER_ADDR": "n1"}
    assert named_hosts(slurm) == ("n1", "n2", "n3")
    assert named_hosts({"MASTER_ADDR": "10.0.0.7"}) == ("10.0.0.7",)
    assert named_hosts({}) == ()
    names = {"n1": ["::ffff:10.0.0.1"], "n2": ["10.0.0.2", "fd00::2"]}
    assert addresses_of(("n1", "n2", "n3"), lambda name: names.get(name, ())) == {"10.0.0.1", "10.0.0.2", "fd00::2"}


def test_the_first_node_sees_who_is_connected_to_the_store() -> None:
    store = TcpSocket(1, OWN, PEER, 29500, 40000, 1, 1)
    other = TcpSocket(2, OWN, STORE, 40001, 29500, 1, 1)
    assert clients_of_store((store, other), {"MASTER_PORT": "29500"}) == {PEER}
    assert clients_of_store((store,), {"MASTER_PORT": "x"}) == frozenset()
    assert clients_of_store((store,), {}) == frozenset()


def test_names_whose_server_never_answers_take_no_more_than_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user names a thousand, in each of several jobs; another user's job is looked at all the same."""
    clock, asked = [0.0], Counter[str]()

    def resolve(name: str) -> list[str]:
        asked[name] += 1
        clock[0] += 3.0 if name.startswith("slow") else 0.001
        return ["10.0.0.1"] if name == "n1" else []

    monkeypatch.setattr(peers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(peers, "_resolve", resolve)
    watch = TrafficWatch(lambda: ())
    for _ in range(3):
        watch._resolve(1000, (f"slow{number}" for number in range(1024)))
    assert watch._resolve(2000, ("n1",)) == {"10.0.0.1"}
    assert asked.total() == 3 and clock[0] < 7
