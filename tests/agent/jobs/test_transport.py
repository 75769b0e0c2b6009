"""From the NCCL facts in rank files to findings about their job, through the agent."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.nccl_logs import log_text

from laggard.agent.jobs import JobTransports, _TransportFact, hardware_facts, judge
from laggard.agent.ranks.reader import RankFiles
from laggard.model import Finding, ProbeResult, Report, Verdict
from laggard.nccl.log.reader import parse_nccl_log
from laggard.nccl.transport import LOG_READ, Transport
from laggard.probes.nccl.rules.rank_findings import judge_rank_transports

Start = Callable[..., Any]


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
