"""On every recorded machine: where the agent's answer passes a prolog, `laggard healthcheck` passes the job, too."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.judge import judge
from support.materialise import names

from laggard.agent.gate.server import Question
from laggard.agent.gate.serving import Now, Own, own_facts, quick_answer
from laggard.agent.prober.known import known_by, stricter_probes
from laggard.agent.prober.loop import ProbeRound
from laggard.agent.prober.process import split
from laggard.cli import main
from laggard.probes.choose import choose_probes
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.profiles import find_profile
from laggard.probes.runner.report import parse_gpus

pytestmark = pytest.mark.apart

AGENTS = choose_probes(find_profile("periodic"), (), (), "periodic")


@pytest.mark.usefixtures("without_processes")
@pytest.mark.parametrize("name", names())
def test_the_agent_passes_nothing_that_healthcheck_rejects(name: str, machine: Callable[[str], Path]) -> None:
    root = machine(name)
    report, variants = split(judge(root, (*AGENTS, *stricter_probes(AGENTS))))
    latest = ProbeRound(report, time.time(), True, variants, 1.0, 2.0, 1.0)
    own: Own = own_facts(known_by(AGENTS, name))._replace(
        sees_processes=True
    )  # a recording has the processes that were seen
    question = Question(own.fingerprint, own.boot, 0, gpus_of(root), 0.0)
    answer = quick_answer(question, own, latest, Now(3.0, time.time()))
    gate = ("--profile", "prolog", "--gate", "enforce", "--collector", "none")
    status = main(["healthcheck", "--host-root", str(root), *gate])
    assert status in (0, 1)
    assert not answer.passes or status == 0, "a job was let onto a node that healthcheck rejects"
    assert answer.passes or status == 1, f"healthcheck, which passes the job, was started for nothing: {answer}"


def gpus_of(root: Path) -> frozenset[int] | None:
    """Those of the job of whose prolog the recording is."""
    try:
        return parse_gpus(Host(str(root)).environ().get("SLURM_JOB_GPUS", ""))
    except Unknown:
        return None
