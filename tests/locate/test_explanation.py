"""Findings beside a culprit are those that can be its cause, and every culprit comes with what to do."""

import pytest
from msgspec import structs
from support.rows import rows
from support.timings import job

from laggard.locate.explanation import explained, ring_request
from laggard.locate.job_timings import UNLISTED, NodeFindings
from laggard.locate.verdict import locate
from laggard.model import CpuNeighbour, Culprit

CODES = ("CLOCK_SKEW", "GPU_THROTTLED", "DISK_FULL", "RDMA_RATE_LOW", "CPU_GOVERNOR")


@rows("locate/causes")
def test_only_what_can_cause_this_kind_of_slowness_is_joined(kind: str, phase: str, causes: tuple[str, ...]) -> None:
    culprit = explained(Culprit(kind, (2,), "n0", phase=phase), job(16, findings_by_node={"n0": NodeFindings(CODES)}))
    assert culprit.findings == causes
    assert culprit.advice.startswith(f"follow {causes[0]}")


def test_what_all_machines_have_explains_nothing() -> None:
    findings = {node: NodeFindings(("GPU_THROTTLED",)) for node in ("n0", "n1")}
    assert (
        explained(Culprit("slow_compute", (2,), "n0", phase="forward"), job(16, findings_by_node=findings)).findings
        == ()
    )


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer"])
def test_every_culprit_comes_with_what_to_do(phase: str) -> None:
    (culprit,) = locate(job(slow=[([9], 0.2)], phase=phase)).culprits
    assert culprit.advice and culprit.findings == ()


@pytest.mark.parametrize(
    ("gpu", "first"), [("GPU-1f", "compare its GPU's clocks"), (None, "see what else runs on its CPU")]
)
def test_a_rank_that_computes_on_no_known_gpu_is_not_explained_by_one(gpu: str | None, first: str) -> None:
    (culprit,) = locate(job(slow=[([9], 0.2)], phase="forward", gpus=(gpu,) * 64)).culprits
    assert culprit.advice.startswith(first)


@pytest.mark.parametrize("gpu", ["GPU-1f", None])
@pytest.mark.parametrize("persistence", ["persistent", "intermittent"])
def test_the_advice_for_a_slow_rank_follows_the_fact_that_explains_it(gpu: str | None, persistence: str) -> None:
    """Nobody is sent to the CPU's cores where the machine reports a throttled GPU, whichever code it reports first."""
    timings = job(16, findings_by_node={"n0": NodeFindings(("CPU_GOVERNOR", "GPU_OF_TOMORROW", "GPU_THROTTLED"))})
    culprit = Culprit("slow_compute", (2,), "n0", gpu=gpu, phase="forward", persistence=persistence)
    assert explained(culprit, timings).advice == (
        "follow GPU_THROTTLED first: a GPU ran slower for heat, protection or its power supply (laggard findings "
        "explain GPU_THROTTLED); then CPU_GOVERNOR, GPU_OF_TOMORROW"
    )


@pytest.mark.parametrize(
    ("known", "first"),
    [
        (Culprit("dead", (2,), "n0"), "read its log"),
        (Culprit("hung", (2,), "n0", stopped=True), "see who stopped its process"),
        (Culprit("slow_host", (2,), "n0", phase="forward", neighbours=(CpuNeighbour(7, 0, 3.0),)), "look for what"),
    ],
)
def test_what_is_known_of_the_rank_itself_comes_before_its_nodes_findings(known: Culprit, first: str) -> None:
    timings = job(16, findings_by_node={"n0": NodeFindings(("RING_FAILED", "GPU_THROTTLED"))})
    found = explained(known, timings)
    assert found.advice.startswith(first) and f"; then {found.findings[0]}" in found.advice


@pytest.mark.parametrize(("kind", "other"), [("hung", "laggard stacks"), ("slow_link", "cables")])
def test_what_hangs_or_is_a_link_has_other_things_to_look_at_too(kind: str, other: str) -> None:
    timings = job(16, findings_by_node={"n0": NodeFindings(("RDMA_RATE_LOW",))})
    advice = explained(Culprit(kind, (2,), "n0", phase="collective"), timings).advice
    assert advice.startswith("follow RDMA_RATE_LOW first: an RDMA port runs slower") and other in advice


def test_the_findings_at_either_end_of_a_link_are_joined() -> None:
    link = ({"node": "n0"}, {"node": "n1"})
    timings = job(24, findings_by_node={"n1": NodeFindings(("RDMA_ERRORS_RISING",))})
    assert explained(Culprit("slow_link", (7, 8), link=link, phase="collective"), timings).findings == (
        "RDMA_ERRORS_RISING",
    )


def test_a_ring_explains_a_slow_link_and_a_slow_gpu_also_where_it_named_both_machines_of_the_job() -> None:
    link = ({"node": "n0"}, {"node": "n1"})
    timings = job(16, findings_by_node={node: NodeFindings(("RING_SLOW", "GPU_SLOW")) for node in ("n0", "n1")})
    found = explained(Culprit("slow_link", (7, 8), link=link, phase="collective"), timings)
    assert found.findings == ("RING_SLOW",) and found.advice.startswith("follow RING_SLOW first")
    assert "laggard ring" not in found.advice.partition("(")[0]
    alone = job(16, findings_by_node={"n0": NodeFindings(("RING_SLOW", "GPU_SLOW"))})
    assert explained(Culprit("slow_compute", (2,), "n0", phase="forward"), alone).findings == ("GPU_SLOW",)


def test_a_slow_link_asks_for_a_ring_of_its_suspects_with_others_of_the_job() -> None:
    link = ({"node": "n2"}, {"node": "n5"})
    found = explained(Culprit("slow_link", (7, 8), link=link, phase="collective"), job(64))
    assert found.advice.endswith("srun -w n2,n5,n0,n1 -N4 --ntasks-per-node=1 laggard ring --pairs")
    machine = explained(Culprit("slow_link", (7,), "n1", phase="collective"), job(64))
    assert machine.advice.endswith("srun -w n1,n0,n2,n3 -N4 --ntasks-per-node=1 laggard ring --pairs")


def test_the_machines_of_a_group_that_is_slow_are_its_suspects() -> None:
    """Any member's adapter, or any way between two, may be the slow one."""
    timings = job(64, findings_by_node={"n6": NodeFindings(("RDMA_RATE_LOW",))})
    culprit = Culprit("slow_link", (17, 49), phase="collective", group="dp:17-49/32", nodes=("n2", "n6"))
    found = explained(culprit, timings)
    assert found.findings == ("RDMA_RATE_LOW",)
    assert found.advice.endswith("srun -w n2,n6,n0,n1 -N4 --ntasks-per-node=1 laggard ring --pairs")


@pytest.mark.parametrize("names", [("n0", "n1"), ("n0", "n1", "n2; rm"), ("n0", None, "-x")])
def test_no_ring_is_asked_for_where_there_are_too_few_machines_or_odd_names(names: tuple[str | None, ...]) -> None:
    assert ring_request(Culprit("slow_link", (7,), "n0"), names) == ""


MINE, OTHER = "GPU-05", "GPU-03"
EIGHT = tuple(f"GPU-0{index}" for index in range(8))


def of_gpus(*codes: str, **about: tuple[str, ...]) -> NodeFindings:
    return NodeFindings((*about, *codes), about, EIGHT)


def rank(kind: str = "slow_compute", gpu: str | None = MINE, phase: str | None = "forward") -> Culprit:
    return Culprit(kind, (5,), "n0", gpu=gpu, phase=phase)


@rows("locate/other_gpus")
def test_what_another_gpu_has_stands_beside_no_rank(kind: str, phase: str | None, code: str) -> None:
    """GPU 3's throttling slows no rank on GPU 5, and its own comes before what the whole machine has."""
    culprit = rank(kind, phase=phase)
    elsewhere = explained(culprit, job(16, findings_by_node={"n0": of_gpus("CPU_GOVERNOR", **{code: (OTHER,)})}))
    own = explained(culprit, job(16, findings_by_node={"n0": of_gpus("CPU_GOVERNOR", **{code: (OTHER, MINE)})}))
    assert code not in elsewhere.findings and code not in elsewhere.advice
    assert code in own.findings and code in own.advice


@pytest.mark.parametrize("gpu", [None, "MIG-1", "GPU-of-another-machine"])
def test_a_finding_of_a_gpu_that_may_be_the_ranks_leads_only_where_nothing_else_does(gpu: str | None) -> None:
    both = explained(rank(gpu=gpu), job(16, findings_by_node={"n0": of_gpus("CPU_GOVERNOR", GPU_XID=(OTHER,))}))
    assert both.findings == ("CPU_GOVERNOR", "GPU_XID")
    assert both.advice.startswith("follow CPU_GOVERNOR first") and both.advice.endswith("then GPU_XID")
    alone = explained(rank(gpu=gpu), job(16, findings_by_node={"n0": of_gpus(GPU_XID=(OTHER,))}))
    assert alone.advice.startswith("follow GPU_XID first")


def test_a_gpu_that_fell_off_the_bus_is_the_ranks_where_its_own_is_listed_no_more() -> None:
    found = NodeFindings(
        ("GPU_LOST", "HUGE_SWAP"), {"GPU_LOST": (UNLISTED,)}, tuple(each for each in EIGHT if each != MINE)
    )
    lost = explained(rank("hung"), job(16, findings_by_node={"n0": found}))
    other = explained(rank("hung", gpu=OTHER), job(16, findings_by_node={"n0": found}))
    assert lost.advice.startswith("follow GPU_LOST first") and other.findings == ("HUGE_SWAP",)


@pytest.mark.parametrize(
    "culprit",
    [
        Culprit("slow_host", tuple(range(8)), "n0", phase="backward"),
        Culprit("slow_link", (5,), "n0", phase="collective"),
        Culprit("slow_link", (0, 5), "n0", link=({"node": "n0"}, {"node": "n0"}), phase="collective"),
    ],
)
def test_of_a_whole_machine_and_of_a_link_all_gpus_count(culprit: Culprit) -> None:
    timings = job(16, findings_by_node={"n0": of_gpus(NVLINK_ERRORS=(OTHER,), PCIE_LINK_DEGRADED=(OTHER,))})
    assert "PCIE_LINK_DEGRADED" in explained(culprit, timings).findings


def test_a_gpus_finding_explains_it_although_one_gpu_of_each_other_machine_has_it_too() -> None:
    one, all_of_it = of_gpus(GPU_THROTTLED=(MINE,)), of_gpus(GPU_THROTTLED=EIGHT)
    assert explained(rank(), job(24, findings_by_node=dict.fromkeys(("n0", "n1", "n2"), one))).findings
    assert not explained(rank(), job(16, findings_by_node={"n0": one, "n1": all_of_it})).findings


def test_busy_processors_explain_only_a_rank_that_waits_for_one() -> None:
    timings = job(16, findings_by_node={"n0": of_gpus("CPU_BUSY")})
    assert not explained(rank(), timings).findings
    waits = structs.replace(rank("slow_host"), neighbours=())
    assert explained(waits, timings).advice.startswith("follow CPU_BUSY first")
