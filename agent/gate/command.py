"""`laggard healthcheck`: is this node fit for a job? For prologs, epilogs, timers and people."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from laggard import wire
from laggard.agent.gate.active import passive, with_active
from laggard.agent.gate.drain_cap import objection
from laggard.agent.gate.flags import check, configure, disabled
from laggard.agent.gate.job_gpus import for_job, job_gpus
from laggard.agent.gate.policy import Orders, Outcome, follow
from laggard.agent.gate.slurm import Slurm
from laggard.agent.gate.syslog import log
from laggard.model import Report, Verdict
from laggard.probes.host.host import Host, open_host
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile, choose_probes, find_profile, with_expectations
from laggard.probes.runner.runner import run
from laggard.text.report import headline, render

if TYPE_CHECKING:
    from laggard.agent.gate.cached_report import Fresh

__all__ = ["configure", "main"]


def main(arguments: argparse.Namespace) -> int:
    check(arguments)
    profile = find_profile(arguments.profile)
    profile = with_expectations(profile, arguments.expect) if arguments.expect else profile
    active = arguments.active or profile.active
    chosen = choose_probes(profile, arguments.only, arguments.skip, f"profile {arguments.profile}", active)
    probes = passive(chosen)
    host = open_host(arguments.host_root)
    if disabled(arguments):
        return _say_disabled(arguments, host)
    until = time.monotonic() + arguments.deadline if arguments.deadline else None
    fresh = _seen_by_the_agent(arguments, profile, probes, host)
    report = fresh.report if fresh else _look(arguments, profile, probes, host)
    report = with_active(report, host, chosen, profile, until)
    report = _strict(for_job(report, job_gpus(arguments.gpus, host), profile.warnings_fail), profile)
    age = fresh.age_seconds if fresh else None
    outcome = follow(report, headline(report, age), _orders(arguments, report))
    _say(arguments, report, age, outcome)
    return outcome.status


def _look(arguments: argparse.Namespace, profile: Profile, probes: tuple[Probe, ...], host: Host) -> Report:
    seconds = arguments.deadline or profile.deadline_seconds
    return run(host, probes, deadline_seconds=seconds, warnings_fail=profile.warnings_fail)


def _seen_by_the_agent(
    arguments: argparse.Namespace, profile: Profile, probes: tuple[Probe, ...], host: Host
) -> Fresh | None:
    """Only what answers the same question: all probes of this machine, as the agent judges them. A node is resumed on
    a look of the gate's own: the agent's may be from before the drain."""
    asks_for_more = arguments.only or arguments.skip or arguments.expect or arguments.resume or profile.warnings_fail
    if arguments.no_agent or host.recorded or asks_for_more or not profile.agent_seconds:
        return None
    from laggard.agent.gate.cached_report import ask_agent  # sockets are slow to import
    from laggard.http.client import NoResponse

    try:
        names = [probe.name for probe in probes]
        return ask_agent(arguments.agent_port, host.node(), profile.agent_seconds, names)
    except NoResponse:
        return None


def _strict(report: Report, profile: Profile) -> Report:
    could_not_tell = report.verdict in (Verdict.UNKNOWN, Verdict.SKIPPED)
    if could_not_tell and profile.unknown == "fail":
        return msgspec.structs.replace(report, verdict=Verdict.FAIL)
    return report


def _orders(arguments: argparse.Namespace, report: Report) -> Orders:
    slurm_node = arguments.slurm_node or os.environ.get("SLURMD_NODENAME") or report.node.partition(".")[0]
    return Orders(
        mode=arguments.gate,
        drain=arguments.drain,
        resume=arguments.resume,
        slurm=Slurm(slurm_node, arguments.scontrol),
        objection=lambda: objection(arguments.collector, report.node),
    )


def _say(arguments: argparse.Namespace, report: Report, age: float | None, outcome: Outcome) -> None:
    gate = {"says": outcome.says} if outcome.says else {}
    source = {"agent_report_age_seconds": age} if age is not None else {}
    if gate or source:
        report = msgspec.structs.replace(report, facts={**report.facts, "gate": {**gate, **source}})
    lines = "".join(f"{line}\n" for line in outcome.says)
    text = wire.encode(report).decode() + "\n" if arguments.format == "json" else render(report, age) + lines
    sys.stdout.write(text)
    sys.stdout.flush()
    if arguments.gate or outcome.says:
        log("; ".join((headline(report, age), *outcome.says)), urgent=report.verdict is not Verdict.OK)


def _say_disabled(arguments: argparse.Namespace, host: Host) -> int:
    text = f"laggard: disabled by {arguments.kill_switch}"
    if arguments.format == "json":
        gate = {"gate": {"says": [text]}}
        text = wire.encode(Report(Verdict.SKIPPED, host.node(), 0.0, (), (), gate)).decode()
    print(text, flush=True)
    return 0
