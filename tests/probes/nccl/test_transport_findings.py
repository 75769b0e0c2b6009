"""Findings from logs of NCCL with their causes, and healthy logs that look similar."""

from collections.abc import Mapping

import pytest
from support.nccl_logs import LOG_CODES, NCCL_LOGS, log_expectations, log_text, logs_firing, logs_near
from support.paths import SHARED
from support.rows import rows

from laggard.nccl.log.reader import parse_nccl_log
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import LogJudgement, judge_nccl_log

RECORDED = SHARED / "data" / "nccl_logs"
HEALTHY = tuple(name for name, expected in log_expectations().items() if not expected["findings"])


def judged(name: str, facts: HardwareFacts | None = None) -> LogJudgement:
    return judge_nccl_log(parse_nccl_log(log_text(name)), facts or HardwareFacts())


def told(judgement: LogJudgement) -> list[list[str]]:
    return sorted([found.code, found.severity.value, found.device] for found in judgement.findings)


@pytest.mark.parametrize("code", LOG_CODES)
def test_a_log_shows_the_fault_and_a_look_alike_stays_quiet(code: str) -> None:
    assert logs_firing(code), f"no log in tests/data/nccl_logs is expected to show {code}"
    assert logs_near(code), f"no log says `near: {code}`: add the healthy one that is most like the fault"


def test_every_log_has_its_expectation() -> None:
    assert {path.stem for path in NCCL_LOGS.glob("*.log")} == set(log_expectations())


@pytest.mark.parametrize("name", log_expectations())
def test_a_log_is_judged_as_expected(name: str) -> None:
    expected = log_expectations()[name]
    judgement = judged(name)
    assert told(judgement) == sorted(expected["findings"])
    assert not {row[0] for row in expected["findings"]} & set(expected.get("near", ()))
    if "unknown" in expected:
        assert expected["unknown"] in judgement.gaps
    else:
        assert judgement.gaps == ""


@rows("probes/transport_causes")
def test_the_cause_and_the_ranks_are_named(name: str, code: str, cause: str, ranks: tuple[int, ...]) -> None:
    (found,) = [found for found in judged(name).findings if found.code == code]
    assert cause in found.summary
    assert found.evidence["ranks"] == list(ranks)
    assert found.fix.text and found.evidence["hosts"]


@pytest.mark.parametrize("name", [name for name in log_expectations() if name.startswith("tcp_")])
def test_sockets_are_right_where_the_machines_have_no_rdma(name: str) -> None:
    without = judged(name, HardwareFacts(rdma=False))
    assert "TCP_FALLBACK" not in {found.code for found in without.findings}
    assert {found.severity.value for found in without.findings} <= {"info"}, "what is set does no harm there"
    assert without.gaps == ""


@pytest.mark.parametrize("name", [name for name in log_expectations() if name.startswith("tcp_")])
def test_sockets_are_a_fault_where_the_machines_have_rdma(name: str) -> None:
    with_rdma = judged(name, HardwareFacts(rdma=True))
    assert ("TCP_FALLBACK", "critical") in {(found.code, found.severity.value) for found in with_rdma.findings}
    assert with_rdma.gaps == ""


def test_host_memory_is_right_for_gpus_that_cannot_do_better() -> None:
    for name in ("gdr_no_module", "gdr_one_rank", "gdr_too_far"):
        assert told(judged(name, HardwareFacts(gpudirect=False))) == []


@pytest.mark.parametrize(
    ("distance", "expected"),
    [("NV18", ["critical"]), ("PIX", ["critical"]), ("PXB", ["critical"]), ("PHB", []), ("SYS", []), ("", ["warning"])],
)
def test_shared_memory_is_judged_by_the_topology_where_it_is_known(distance: str, expected: list[str]) -> None:
    """The log is cut: without its beginning and the peer-to-peer channels it does not show the topology itself."""
    text = "".join(
        line
        for line in log_text("shm_two_sockets").splitlines(keepends=True)
        if not any(word in line for word in ("START", "version", "cudaDriver", "P2P"))
    )
    pairs = [("43000", "9d000"), ("df000", "1b000")]
    links = tuple((*pair, distance) for pair in pairs if distance)
    log = parse_nccl_log(text)
    log = log._replace(processes=tuple(process._replace(links=links) for process in log.processes))
    judgement = judge_nccl_log(log, HardwareFacts())
    assert [found.severity.value for found in judgement.findings] == expected


def test_a_process_without_a_logged_rank_is_named_by_its_channels() -> None:
    text = "".join(line for line in log_text("tcp_no_device").splitlines(keepends=True) if " comm 0x" not in line)
    (found,) = judge_nccl_log(parse_nccl_log(text), HardwareFacts(rdma=True)).findings
    assert found.evidence["ranks"] == [0, 1, 2, 3]


def test_a_process_that_drives_several_gpus_is_named_by_all_its_ranks() -> None:
    text = log_text("tcp_no_device")
    for rank in range(4):
        text = text.replace(f":{4100 + rank}:{4100 + rank} ", f":{4100 + rank // 2}:{4200 + rank} ")
    (found,) = judge_nccl_log(parse_nccl_log(text), HardwareFacts(rdma=True)).findings
    assert (found.evidence["ranks"], found.evidence["processes"]) == ([0, 1, 2, 3], 2)


def test_a_torn_version_line_is_no_second_version() -> None:
    text = log_text("roce_gpudirect").replace("NCCL version 2.27.5+cuda12.8", "NCCL version 2.27+cuda12.8", 1)
    assert told(judge_nccl_log(parse_nccl_log(text), HardwareFacts())) == []


def test_half_a_job_on_tcp_is_a_fallback_without_hardware_facts() -> None:
    """Other ranks of the same job found RDMA devices."""
    text = log_text("roce_gpudirect").replace("gpu0", "rdma0") + log_text("tcp_switched_off")
    judgement = judge_nccl_log(parse_nccl_log(text), HardwareFacts())
    assert ["TCP_FALLBACK", "critical", "gpu00 and 1 other"] in told(judgement)


def test_a_rank_of_a_newer_nccl_that_receives_without_gpudirect_is_still_named() -> None:
    text = log_text("gdr_mixed_2_31")
    off = text.replace("-> 0[0] [receive] via NET/IB/0/GDRDMA/flush=None", "-> 0[0] [receive] via NET/IB/0")
    (found,) = judge_nccl_log(parse_nccl_log(off), HardwareFacts()).findings
    assert (found.code, found.evidence["ranks"]) == ("GPUDIRECT_OFF", [0])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_is_quiet_with_and_without_hardware_facts(name: str) -> None:
    for rdma in (True, None):
        assert told(judged(name, HardwareFacts(rdma=rdma))) == []


RECORDINGS: Mapping[str, tuple[set[str], str, str]] = {
    "01_roce_gdr_2node16gpu_nccl2.27.5.txt": (set(), "", ""),
    "02_socket_fallback_on_efa_vm_zero3_4node.txt": ({"TCP_FALLBACK"}, "does not say why", ""),
    "04_socket_no_libibverbs_v100_nccl2.7.8.txt": ({"TCP_FALLBACK"}, "libibverbs is missing", ""),
    "07_ib_retry_exceeded_mixed_ib_roce_azure.txt": (set(), "", "error 12"),
    "08_net_using_variants_ml_engineering.txt": (set(), "", "channel lines"),
    "10_nccl_docs_logging_samples.txt": ({"TCP_FALLBACK", "NCCL_ENV_HARMFUL"}, "plugin did not start", "NCCL warned"),
}
"""By file: codes, cause and gaps. The last is a page of samples, each line from another process."""


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded logs here")
def test_recorded_logs_are_judged_as_expected() -> None:
    assert {path.name for path in RECORDED.iterdir()} == set(RECORDINGS), "give each file its expectation"
    for name, (codes, cause, gap) in RECORDINGS.items():
        judgement = judge_nccl_log(parse_nccl_log((RECORDED / name).read_text()), HardwareFacts())
        assert {found.code for found in judgement.findings} == codes, name
        assert not cause or any(cause in found.summary for found in judgement.findings), name
        assert (gap in judgement.gaps) and bool(gap) == bool(judgement.gaps), f"{name}: {judgement.gaps}"
