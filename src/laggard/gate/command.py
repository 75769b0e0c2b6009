"""`laggard healthcheck`: is this node fit for a job? For prologs, epilogs, timers and people."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Final

import msgspec

from laggard import wire
from laggard.gate.decision import LATE, WRONG_SETUP, Decision, decide, in_one_line
from laggard.gate.flags import check_flags, configure, make_settings
from laggard.gate.measure import Measured, measure
from laggard.gate.memory import write_ticket
from laggard.gate.settings import GateConf, GateSettings
from laggard.kit.parts import Line, plain_text
from laggard.kit.terminal import show, show_or_write
from laggard.model import Report, Verdict
from laggard.wire.words import headline, render, report_parts

# What the gate says, of what it measured and did: on its standard output, and in the system's log.


def say(settings: GateSettings, measured: Measured, decision: Decision) -> None:
    """Prints the report and what was done, and writes both to the system's log."""
    if settings.explains_drain:
        return _explain(settings, decision)
    report, age = _with_decision(measured.age, decision), measured.age
    said = [Line(line) for line in decision.messages]
    if settings.as_json:
        sys.stdout.write(wire.encode(report).decode() + "\n")
        sys.stdout.flush()
    elif decision.messages == (LATE,):
        show(said)
    elif settings.slurm.mode and not settings.verbose:
        show([Line(headline(report), report.verdict.value), *said])
    else:
        show_or_write(
            lambda: [*report_parts(report, age, settings.verbose), *said],
            lambda: render(report, age, settings.verbose) + plain_text(said),
        )
    if settings.slurm.mode or decision.messages:
        urgent = report.verdict is not Verdict.OK or any(WRONG_SETUP in line for line in decision.messages)
        _log(in_one_line(headline(report), decision.messages), urgent)


def _explain(settings: GateSettings, decision: Decision) -> None:
    from laggard.gate.audit import audit, audit_lines  # where a person asks

    audited = audit(decision.report)
    if settings.as_json:
        sys.stdout.write(wire.encode(audited).decode() + "\n")
        sys.stdout.flush()
    else:
        show([*audit_lines(audited), *map(Line, decision.messages)])


def say_disabled(settings: GateSettings) -> None:
    """Says that the gate does nothing, and by which file."""
    text = f"gate: switched off by {settings.kill_switch}"
    if settings.slurm.mode:
        _log(f"laggard: {text}", urgent=True)
    if settings.as_json:
        gate = {"gate": {"says": [text]}}
        text = wire.encode(Report(Verdict.SKIPPED, settings.subject.host.node(), 0.0, (), (), gate)).decode()
    print(text, flush=True)


def _with_decision(age: float | None, decision: Decision) -> Report:
    """The report with what was decided, and where it is from, in its facts."""
    report = decision.report
    gate = {"says": decision.messages} if decision.messages else {}
    source = {"agent_report_age_seconds": age} if age is not None else {}
    if not gate and not source:
        return report
    return msgspec.structs.replace(report, facts={**report.facts, "gate": {**gate, **source}})


def _log(text: str, urgent: bool) -> None:

    write_syslog(text, urgent)


# Writes one line to the system's log, since SLURM drops the output of a prolog that passes. Never waits: a log daemon
# that does not read would hold every job.

_SOCKET: Final = "/dev/log"
_DAEMON_WARNING, _DAEMON_INFO = 28, 30  # facility daemon (3) * 8 + severity, RFC 5424
_MAX_BYTES: Final = 1024


def write_syslog(text: str, urgent: bool) -> None:
    """Sends `text` as a warning where `urgent`, else as information. Errors are ignored: a machine without a log daemon
    has no such socket."""
    import socket

    priority = _DAEMON_WARNING if urgent else _DAEMON_INFO
    line = f"<{priority}>laggard[{os.getpid()}]: {_job_prefix()}{text}".encode(errors="replace")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(line[:_MAX_BYTES], _SOCKET)


def _job_prefix() -> str:
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"job {job}: " if job.isascii() and job.isdecimal() else ""


__all__ = ["configure", "main"]


def main(arguments: argparse.Namespace) -> int:
    if arguments.accept is not None:
        from laggard.gate.accept import accept  # where an operator asks

        check_flags(arguments)
        return accept(arguments)
    settings = make_settings(arguments)
    if settings.is_disabled:
        say_disabled(settings)
        return 0
    if settings.gate_conf is not None:
        return _check_setup(settings, settings.gate_conf)
    measured = measure(settings)
    write_ticket(settings, os.environ)
    decision = decide(settings, measured)
    say(settings, measured, decision)
    return decision.status


def _check_setup(settings: GateSettings, conf: GateConf) -> int:
    from laggard.gate.self_check import setup_lines  # no prolog needs it

    lines, is_well = setup_lines(settings, conf)
    show(lines)
    return 0 if is_well else 1
