"""What the agent says of a job as a whole: that no hook sees it train, and how its ranks reach one another."""

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.nccl_logs import log_text

from laggard.agent.jobs import JobTransports, _TransportFact, hardware_facts, hook_blind_findings, judge
from laggard.agent.ranks.reader import RankFiles
from laggard.model import Finding, ProbeResult, Report, Severity, Verdict
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.transport import LOG_READ, Transport
from laggard.probes.nccl.rules.rank_findings import judge_rank_transports

Start = Callable[..., Any]


@pytest.fixture
def start_blind(start_rank: Start, tmp_path: Path) -> Start:
    """Starts a rank with `value` as its fact `unnamed_collectives`."""

    def start(rank: int, value: object) -> Any:
        path = tmp_path / f"facts-{rank}.json"
        path.write_text(json.dumps({"unnamed_collectives": value}))
        started = start_rank(rank=rank, world_size=16)
        started.do(f"facts {path}")
        return started

    return start


def test_ranks_that_cannot_name_collectives_are_reported_by_reason(start_blind: Start, rank_dir: Path) -> None:
    for rank, value in enumerate(("flight_recorder_off", "flight_recorder_off", "flight_recorder_small", None)):
        start_blind(rank, value)
    off, small = hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks)
    assert {(each.code, each.severity, each.device) for each in (off, small)} == {
        ("HOOK_BLIND", Severity.INFO, "job j1")
    }
    assert "ranks 0-1: torch's Flight Recorder is off" in off.summary and off.evidence["ranks"] == [0, 1]
    assert {each.evidence["owner"] for each in (off, small)} == {os.geteuid()}, "whose job it is"
    assert "rank 2: torch's Flight Recorder is too small" in small.summary
    assert "TORCH_FR_BUFFER_SIZE" in off.fix.text and "TORCH_FR_BUFFER_SIZE" in small.fix.text


def test_a_rank_that_is_gone_is_not_blind(start_blind: Start, rank_dir: Path) -> None:
    start_blind(0, "flight_recorder_off").close()
    assert hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks) == ()


@pytest.mark.parametrize("value", ["on", "", 3, True, ["flight_recorder_off"], {"flight_recorder_off": 1}])
def test_a_value_that_is_no_reason_makes_no_finding(value: object, start_blind: Start, rank_dir: Path) -> None:
    start_blind(0, value)
    assert hook_blind_findings(RankFiles(str(rank_dir), "n0").read().ranks) == ()


def test_the_agent_reports_it_of_the_job(start_agent: Start, start_blind: Start) -> None:
    start_blind(0, "flight_recorder_off")
    agent = start_agent()
    with urllib.request.urlopen(f"{agent.url}/api/v1/ranks", timeout=300) as answer:
        assert [found["code"] for found in json.load(answer)["findings"]] == ["HOOK_BLIND"]
    with urllib.request.urlopen(f"{agent.url}/metrics", timeout=300) as answer:
        assert 'laggard_finding{code="HOOK_BLIND",device="job j1"' in answer.read().decode()


def report(ports: dict[str, str] | None, verdict: Verdict = Verdict.OK) -> Report:
    probe = ProbeResult("rdma_ports", verdict, "", 0.1)
    facts = {} if ports is None else {"rdma_ports": {"ports": ports}}
    return Report(verdict, "n0", 0.1, (probe,), (), facts)


WITH_RDMA = report({"mlx5_0": "4: ACTIVE, 400 Gb/sec"})
WITHOUT = report(None, Verdict.SKIPPED)
NOT_KNOWN = report(None, Verdict.UNKNOWN)


def facts_of(name: str, folder: Path) -> list[Path]:
    """The facts that the ranks of the sample log's first node would write."""
    processes = parse_nccl_log(log_text(name)).processes
    paths = []
    for number, process in enumerate(one for one in processes if one.host == processes[0].host):
        transport = Transport(process.version, "library", (), 0, LOG_READ, process)
        paths.append(folder / f"facts-{number}.json")
        paths[-1].write_text(json.dumps({"transport": json.loads(transport.to_json())}))
    return paths


@pytest.fixture
def findings(rank_dir: Path, start_rank: Start, tmp_path: Path) -> Callable[..., tuple[Finding, ...]]:
    def of(log: str, node: Report) -> tuple[Finding, ...]:
        for number, path in enumerate(facts_of(log, tmp_path)):
            start_rank(rank=number, world_size=16).do(f"facts {path}")
        return JobTransports().findings(RankFiles(str(rank_dir), "n0").read().ranks, node)

    return of


def test_ranks_that_use_tcp_beside_rdma_are_named(findings: Callable[..., tuple[Finding, ...]]) -> None:
    (found,) = findings("tcp_no_libibverbs", WITH_RDMA)
    assert (found.code, found.device) == ("TCP_FALLBACK", "job j1")
    assert found.evidence["ranks"] == [0, 1] and "libibverbs" in found.summary
    assert found.evidence["owner"] == os.geteuid(), "whose job it is"


@pytest.mark.parametrize(("log", "node"), [("roce_gpudirect", WITH_RDMA), ("tcp_asked_for", WITHOUT)])
def test_healthy_ranks_are_quiet(log: str, node: Report, findings: Callable[..., tuple[Finding, ...]]) -> None:
    assert findings(log, node) == ()


def test_a_fact_that_is_no_transport_makes_no_finding(rank_dir: Path, start_rank: Start, tmp_path: Path) -> None:
    for number, value in enumerate(('"x"', "[]", '{"transport": 99}', "null", '{"transport":1,"ways":{}}')):
        path = tmp_path / f"{number}.json"
        path.write_text(f'{{"transport": {value}}}')
        start_rank(rank=number, world_size=16).do(f"facts {path}")
    assert JobTransports().findings(RankFiles(str(rank_dir), "n0").read().ranks, WITH_RDMA) == ()


@pytest.mark.parametrize(("node", "rdma"), [(WITH_RDMA, True), (WITHOUT, False), (NOT_KNOWN, None)])
def test_whether_the_node_has_rdma_comes_from_the_probe(node: Report, rdma: bool | None) -> None:
    assert hardware_facts(node).rdma is rdma


def test_the_agent_reports_it_of_the_job_and_not_of_the_node(
    start_agent: Start, start_rank: Start, tmp_path: Path
) -> None:
    """A gate must not keep the next job away because this one uses TCP."""
    (first, *_) = facts_of("tcp_no_libibverbs", tmp_path)
    start_rank(rank=0, world_size=16).do(f"facts {first}")
    agent = start_agent()

    def get(path: str) -> str:
        with urllib.request.urlopen(agent.url + path, timeout=300) as answer:
            return str(answer.read().decode())

    document = json.loads(get("/api/v1/ranks"))
    assert [found["code"] for found in document["findings"]] == ["TCP_FALLBACK"]
    assert 'laggard_finding{code="TCP_FALLBACK",device="job j1"' in get("/metrics")
    assert "TCP_FALLBACK" not in get("/api/v1/report")


@pytest.mark.parametrize("version", ["2.x", "IB", "", "9" * 5000 + ".1", "2.\u0663"])
def test_a_version_that_is_none_costs_nobody_a_finding(version: str, tmp_path: Path) -> None:
    """Ranks that talk by shared memory, where the version decides whether that is explained."""
    texts = [path.read_text() for path in facts_of("shm_nvlink", tmp_path)]
    honest = [json.loads(text)["transport"] for text in texts]
    unexplained = {"version": version, "links": [], "hints": [], "world": None}
    hostile = [{**document, **unexplained} for document in honest]
    rows = [*fact_rows("honest", honest), *fact_rows("hostile", hostile)]
    found = {it.device for it in judge(rows, hardware_facts(WITH_RDMA)) if it.code == "SHM_INSTEAD_OF_P2P"}
    assert "job honest" in found


def test_a_defect_in_judging_one_job_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = [json.loads(path.read_text())["transport"] for path in facts_of("shm_nvlink", tmp_path)]

    def fail_of_hostile(job: str, *rest: Any) -> Any:
        if job == "hostile":
            raise RuntimeError("a defect")
        return judge_rank_transports(job, *rest)

    monkeypatch.setattr("laggard.agent.jobs.judge_rank_transports", fail_of_hostile)
    rows = [*fact_rows("hostile", honest), *fact_rows("honest", honest)]
    assert {it.device for it in judge(rows, hardware_facts(WITH_RDMA))} >= {"job honest"}


def fact_rows(job: str, documents: list[dict[str, Any]]) -> list[_TransportFact]:
    return [_TransportFact(0, job, rank, json.dumps(document)) for rank, document in enumerate(documents)]
