"""`laggard healthcheck`: is this node fit for a job? For prologs, epilogs, timers and people."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from laggard import wire
from laggard.gate.active import passive_probes, run_active_probes
from laggard.gate.drain_cap import NO_CAP, drain_refusal
from laggard.gate.flags import check_flags, chosen_probes, configure, is_disabled, is_switched_off
from laggard.gate.gang import check_gang_flags, gang_lines, run_gang
from laggard.gate.job_gpus import for_job, job_gpus
from laggard.gate.policy import ENFORCE, Decision, GatePolicy, decide
from laggard.gate.self_check import CHECK_SECONDS, NO_COLLECTOR, cap_words, gate_problems
from laggard.gate.slurm import Slurm
from laggard.gate.syslog import write_syslog
from laggard.gate.time_limit import TimeLimit
from laggard.model import Report, Verdict
from laggard.probes.host.host import Host, open_host
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile
from laggard.probes.runner.runner import run
from laggard.terminal.output import show, show_or_write
from laggard.terminal.parts import Line, plain_text
from laggard.text.report import headline, headline_line, render, report_parts

if TYPE_CHECKING:
    from laggard.gate.cached_report import CachedReport

__all__ = ["configure", "main"]


def main(arguments: argparse.Namespace) -> int:
    limit = TimeLimit(arguments.deadline, decides=bool(arguments.gate or arguments.drain or arguments.resume))
    check_flags(arguments)
    check_gang_flags(arguments)
    profile, chosen = chosen_probes(arguments)
    probes = passive_probes(chosen)
    host = open_host(arguments.host_root)
    if is_disabled(arguments):
        return _print_disabled(arguments, host)
    if arguments.check_gate and not arguments.gate:
        return _check_gate(arguments, host, limit)
    cached = _cached_report(arguments, profile, probes, host)
    report = cached.report if cached else _run_probes(profile, probes, host, limit)
    if arguments.gang:
        report = run_gang(report, arguments, limit.end_of_measurements, more_follows=len(chosen) > len(probes))
    report = run_active_probes(report, host, chosen, profile, limit)
    report = _judge_unknown(for_job(report, job_gpus(arguments.gpus, host), profile.warnings_fail), profile)
    age = cached.age_seconds if cached else None
    decision = decide(report, headline(report, age), _policy(arguments, report, limit))
    decision = _with_problems(arguments, report.node, decision, limit)
    decision = decision._replace(messages=(*gang_lines(report), *decision.messages))
    _print(arguments, report, age, decision)
    return decision.status


def _check_gate(arguments: argparse.Namespace, host: Host, limit: TimeLimit) -> int:
    """Prints what is wrong with the gate's setup, or what the gate does. Returns the exit status."""
    from laggard.gate.conf_check import mode_problems, own_flags  # no prolog needs them
    from laggard.gate.slurm_config import config_problems

    own, problems = own_flags(arguments.gate_flags)
    arguments.slurm_node = arguments.slurm_node or own.slurm_node
    node = (open_host(own.host_root) if own.host_root and not host.recorded else host).node()
    slurm = _slurm(arguments, node, limit)
    problems = mode_problems(arguments.gate_mode) + problems
    problems += gate_problems(arguments.collector, node, slurm, limit)
    problems += config_problems(slurm, arguments.gate_seconds, arguments.gang_seconds, arguments.gang_token)
    lines = [Line(f"gate: {problem}", "critical") for problem in problems]
    off = is_switched_off(arguments.kill_switch)
    if off:
        lines.append(Line(f"gate: {_switched_off(arguments)}: remove the file to switch the gate on", "critical"))
    elif not problems:
        lines.append(Line(_set_up(arguments, node, slurm.node, limit), "ok"))
    show(lines)
    return 1 if off or problems else 0


def _set_up(arguments: argparse.Namespace, node: str, slurm_node: str, limit: TimeLimit) -> str:
    """What the gate does, and who knows this node."""
    mode = f", {arguments.gate_mode}" if arguments.gate_mode else ""
    if arguments.collector == NO_CAP:
        return f"gate: set up{mode}: SLURM knows {slurm_node}; no cap"
    cap = f", {cap_words(arguments.collector, node, limit)}" if arguments.gate_mode == ENFORCE else ""
    return f"gate: set up{mode}{cap}: the collector and SLURM know {node}"


def _switched_off(arguments: argparse.Namespace) -> str:
    return f"switched off by {arguments.kill_switch}"


def _run_probes(profile: Profile, probes: tuple[Probe, ...], host: Host, limit: TimeLimit) -> Report:
    seconds = limit.to_measure(profile.deadline_seconds)
    return run(host, probes, deadline_seconds=seconds, warnings_fail=profile.warnings_fail)


def _cached_report(
    arguments: argparse.Namespace, profile: Profile, probes: tuple[Probe, ...], host: Host
) -> CachedReport | None:
    """The agent's last report, where it answers the same question: all probes of this machine, judged as the agent
    judges them. To resume a node the gate runs the probes itself: the agent's report may be older than the drain."""
    asks_for_more = arguments.only or arguments.skip or arguments.expect or arguments.resume or profile.warnings_fail
    if arguments.no_agent or host.recorded or asks_for_more or not profile.agent_seconds:
        return None
    from laggard.gate.cached_report import fetch_cached_report  # sockets are slow to import
    from laggard.http.client import NoResponse

    try:
        names = [probe.name for probe in probes]
        return fetch_cached_report(arguments.agent_port, host.node(), profile.agent_seconds, names)
    except NoResponse:
        return None


def _judge_unknown(report: Report, profile: Profile) -> Report:
    """`report` failed, where the profile fails what is unknown."""
    is_unknown = report.verdict in (Verdict.UNKNOWN, Verdict.SKIPPED)
    if is_unknown and profile.unknown == "fail":
        return msgspec.structs.replace(report, verdict=Verdict.FAIL)
    return report


def _policy(arguments: argparse.Namespace, report: Report, limit: TimeLimit) -> GatePolicy:
    return GatePolicy(
        mode=arguments.gate,
        drain=arguments.drain,
        resume=arguments.resume,
        slurm=_slurm(arguments, report.node, limit),
        drain_refusal=lambda: drain_refusal(arguments.collector, report.node, limit),
    )


def _slurm(arguments: argparse.Namespace, node: str, limit: TimeLimit) -> Slurm:
    name = arguments.slurm_node or os.environ.get("SLURMD_NODENAME") or node.partition(".")[0]
    return Slurm(name, arguments.scontrol, limit.end)


def _with_problems(arguments: argparse.Namespace, node: str, decision: Decision, limit: TimeLimit) -> Decision:
    """`decision`, and before it what is wrong with the gate's setup: of what would make it pass everything always, of
    the rest where that was asked for and there is time; of SLURM where it is to drain or resume."""
    problems = [NO_COLLECTOR] if arguments.gate == ENFORCE and not arguments.collector else []
    if arguments.check_gate and limit.to_decide(CHECK_SECONDS) < CHECK_SECONDS:
        return decision._replace(messages=("gate: setup not checked: no time was left", *decision.messages))
    if arguments.check_gate:
        slurm = _slurm(arguments, node, limit) if arguments.drain or arguments.resume else None
        problems = gate_problems(arguments.collector, node, slurm, limit)
    if not problems or arguments.gate is None:
        return decision
    return decision._replace(messages=(*(f"gate: WRONG SETUP: {problem}" for problem in problems), *decision.messages))


def _print(arguments: argparse.Namespace, report: Report, age: float | None, decision: Decision) -> None:
    """Prints the report and what was done, and writes both to the system's log. `age`: of the agent's report, in
    seconds; None where the gate ran the probes."""
    gate = {"says": decision.messages} if decision.messages else {}
    source = {"agent_report_age_seconds": age} if age is not None else {}
    if gate or source:
        report = msgspec.structs.replace(report, facts={**report.facts, "gate": {**gate, **source}})
    said = [Line(line) for line in decision.messages]
    if arguments.format == "json":
        sys.stdout.write(wire.encode(report).decode() + "\n")
        sys.stdout.flush()
    elif arguments.gate and not arguments.verbose:
        show([headline_line(report, age), *said])
    else:
        show_or_write(
            lambda: [*report_parts(report, age, arguments.verbose), *said],
            lambda: render(report, age, arguments.verbose) + plain_text(said),
        )
    if arguments.gate or decision.messages:
        urgent = report.verdict is not Verdict.OK or any("WRONG SETUP" in line for line in decision.messages)
        write_syslog("; ".join((headline(report, age), *decision.messages)), urgent=urgent)


def _print_disabled(arguments: argparse.Namespace, host: Host) -> int:
    text = f"gate: {_switched_off(arguments)}"
    if arguments.gate:
        write_syslog(f"laggard: {text}", urgent=True)
    if arguments.format == "json":
        gate = {"gate": {"says": [text]}}
        text = wire.encode(Report(Verdict.SKIPPED, host.node(), 0.0, (), (), gate)).decode()
    print(text, flush=True)
    return 0
