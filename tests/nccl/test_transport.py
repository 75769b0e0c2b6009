"""What ranks report of their NCCL as JSON, and the agent's findings from it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nccl_logs import log_expectations, log_text
from support.rows import rows

from laggard.nccl.log.model import HINTS, Communicator, Connection, Hint, NcclProcess
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.transport import LOG_EMPTY, LOG_OF_THE_USER, LOG_READ, LOG_STATES, MAX_BYTES, Transport
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.rank_findings import TransportJudgement, judge_rank_transports

WITH_RDMA = HardwareFacts(rdma=True, gpus=2)
CODES = ("TCP_FALLBACK", "GPUDIRECT_OFF", "SHM_INSTEAD_OF_P2P", "NCCL_VERSION_MIXED")


def transport(process: NcclProcess, **fields: Any) -> Transport:
    plain = Transport(process.version, "library", (), 2, LOG_READ, process)
    return plain._replace(**fields)


def transports(name: str) -> list[Transport]:
    """What the ranks of the first node would report."""
    processes = parse_nccl_log(log_text(name)).processes
    own = [process for process in processes if process.host == processes[0].host]
    return [Transport.from_json(transport(process).to_json()) for process in own]


def judge(name: str, facts: HardwareFacts = WITH_RDMA) -> TransportJudgement:
    return judge_rank_transports("4711", transports(name), facts)


@pytest.mark.parametrize("name", log_expectations())
def test_the_ranks_of_a_node_give_the_findings_of_their_log(name: str) -> None:
    """Except where the first node does not show it: two versions meet only in the whole job, or the rank at fault is on
    another node."""
    expected = {row[0] for row in log_expectations()[name]["findings"]} & set(CODES)
    elsewhere = {"version_mixed", "gdr_one_rank"}
    found = judge(name).findings
    assert {one.code for one in found} == (set() if name in elsewhere else expected)
    assert all(one.device.startswith("job 4711") and one.severity.value == "critical" for one in found)


@rows("nccl/transport_causes")
def test_the_cause_and_the_ranks_come_through(name: str, cause: str, ranks: tuple[int, ...]) -> None:
    (found,) = judge(name).findings
    assert cause in found.summary and tuple(found.evidence["ranks"]) == ranks


def test_sockets_are_no_finding_on_a_node_without_rdma() -> None:
    for name in ("tcp_switched_off", "tcp_no_device"):
        assert judge(name, HardwareFacts(rdma=False)) == TransportJudgement((), "")


def test_the_cause_is_found_in_a_variable_where_the_log_has_none() -> None:
    (one, _) = transports("tcp_beside_rdma")
    quiet = one._replace(process=one.process._replace(variables=()), variables=(("NCCL_NET", "Socket"),))
    (found,) = judge_rank_transports("1", [quiet], WITH_RDMA).findings
    assert "NCCL_NET=Socket" in found.summary


def test_ranks_that_report_nothing_are_unknown_and_never_ok() -> None:
    silent = [
        Transport("2.27.5", "library", (), 0, log, NcclProcess("", 0), rank)
        for rank, log in enumerate([LOG_EMPTY, LOG_OF_THE_USER])
    ]
    judgement = judge_rank_transports("1", silent, WITH_RDMA)
    assert judgement.findings == ()
    assert "ranks 0-1" in judgement.gaps and "NCCL_DEBUG" in judgement.gaps and "no RDMA device open" in judgement.gaps
    assert judge_rank_transports("1", transports("roce_gpudirect"), WITH_RDMA).gaps == ""


def test_the_rank_in_the_job_is_named_where_it_is_known() -> None:
    """The largest communicator of a rank need not be the whole job's."""
    ranks = [one._replace(rank=40 + number) for number, one in enumerate(transports("tcp_no_libibverbs"))]
    (found,) = judge_rank_transports("1", ranks, WITH_RDMA).findings
    assert found.evidence["ranks"] == [40, 41]


def test_ranks_of_one_node_with_two_versions() -> None:
    one, other = transports("roce_gpudirect")
    (found,) = judge_rank_transports("1", [one, other._replace(nccl_version="2.26.2")], WITH_RDMA).findings
    assert (found.code, found.evidence["versions"]) == ("NCCL_VERSION_MIXED", {"2.27.5": [0], "2.26.2": [1]})


@pytest.mark.parametrize("name", log_expectations())
def test_a_ranks_report_survives_json(name: str) -> None:
    for process in parse_nccl_log(log_text(name)).processes:
        sent = transport(process)
        got = Transport.from_json(sent.to_json())
        same = (
            "network",
            "provider",
            "rdma_devices",
            "variables",
            "connections",
            "hints",
            "ring_gdr",
            "started",
            "version",
        )
        assert {name: getattr(got.process, name) for name in same} == {name: getattr(process, name) for name in same}
        assert got._replace(process=process) == sent
        assert got.process.world == process.world


TEXT = st.text(max_size=400)
NUMBER = st.integers(0, 10**9)
CONNECTIONS = st.builds(
    Connection,
    st.sampled_from(["NET", "P2P", "SHM", "COLLNET"]),
    TEXT,
    st.none() | NUMBER,
    st.sampled_from(["", "send", "receive"]),
    st.booleans(),
    NUMBER,
    st.lists(st.tuples(NUMBER, NUMBER), max_size=64).map(tuple),
)
PROCESSES = st.builds(
    NcclProcess,
    st.just(""),
    st.just(0),
    network=TEXT,
    provider=TEXT,
    rdma_devices=st.none() | st.lists(TEXT, max_size=64).map(tuple),
    variables=st.lists(st.tuples(TEXT, TEXT), max_size=128).map(tuple),
    communicators=st.lists(st.builds(Communicator, TEXT, NUMBER, NUMBER, bus_id=TEXT), max_size=2).map(tuple),
    connections=st.lists(CONNECTIONS, max_size=80).map(tuple),
    hints=st.lists(st.builds(Hint, st.sampled_from(list(HINTS)), TEXT, NUMBER), max_size=13).map(tuple),
    warnings=st.lists(TEXT, max_size=16).map(tuple),
)
TRANSPORTS = st.builds(
    Transport,
    st.text(max_size=64),
    st.sampled_from(["library", "torch", ""]),
    st.lists(st.tuples(TEXT, TEXT), max_size=64).map(tuple),
    st.none() | NUMBER,
    st.sampled_from(list(LOG_STATES)),
    PROCESSES,
    st.none() | NUMBER,
)


@given(TRANSPORTS)
def test_any_report_fits_and_stays_the_same_when_sent_again(value: Transport) -> None:
    text = value.to_json()
    assert len(text.encode()) <= MAX_BYTES
    got = Transport.from_json(text)
    assert Transport.from_json(got.to_json()) == got
    assert (got.log, got.uverbs) == (value.log, value.uverbs)
    if not json.loads(text).get("cut"):
        total = sum(connection.channels for connection in value.process.connections)
        assert sum(connection.channels for connection in got.process.connections) == total


def test_what_decides_a_finding_is_cut_last() -> None:
    process = parse_nccl_log(log_text("tcp_switched_off")).processes[0]
    noise = tuple((f"NCCL_{letter}" * 8, "x" * 250) for letter in "ABCDEFGHIJKLMNOPQRST")
    text = transport(process, variables=(*noise, ("NCCL_IB_DISABLE", "1"))).to_json()
    got = Transport.from_json(text)
    assert json.loads(text)["cut"] and dict(got.variables)["NCCL_IB_DISABLE"] == "1"
    assert got.process.connections == process.connections and got.process.network == "Socket"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "transport",
        "version",
        "source",
        "rank",
        "variables",
        "uverbs",
        "log",
        "network",
        "devices",
        "world",
        "ways",
        "hints",
    ]
)


@given(st.text() | st.binary() | JSON.map(json.dumps) | st.tuples(FIELDS, JSON), st.booleans())
def test_whatever_a_rank_writes_is_read_or_rejected_in_one_line(junk: Any, drop: bool) -> None:
    """Junk, or a good document in which one field has another type or is missing."""
    if isinstance(junk, tuple):
        document = json.loads(transport(parse_nccl_log(log_text("roce_gpudirect")).processes[0]).to_json())
        name, content = junk
        document |= {name: content}
        if drop:
            del document[name]
        junk = json.dumps(document)
    try:
        got = Transport.from_json(junk)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert Transport.from_json(got.to_json()) == got
        judge_rank_transports("1", [got], WITH_RDMA)


@pytest.mark.parametrize("size", [MAX_BYTES + 1, 1 << 24])
def test_a_document_that_is_too_long_is_rejected_unread(size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Transport.from_json("[" * size)
