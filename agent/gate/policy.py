"""What follows from a report: the exit status, and what SLURM is told. Guards come before every drain, in this order:
the mode, the kill-switch file (checked before anything is looked at), the cluster's cap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from laggard.agent.gate.slurm import Slurm, SlurmError
from laggard.model import EXIT_CODES, Report, Severity, Verdict

REPORT_ONLY: Final = "report-only"
ENFORCE: Final = "enforce"
MODES: Final = (REPORT_ONLY, ENFORCE)

REJECT: Final = "gate: reject"
"""The line that the scripts of deploy/slurm wait for: a crash, a traceback or an odd exit status is no verdict."""
PASS: Final = "gate: pass"


class Orders(NamedTuple):
    """`mode`: how SLURM takes the exit status, None where a person asks. `objection` says why this node may not be
    drained now; it is asked only where a drain is due."""

    mode: str | None
    drain: bool
    resume: bool
    slurm: Slurm
    objection: Callable[[], str]


class Outcome(NamedTuple):
    status: int
    says: tuple[str, ...] = ()


def follow(report: Report, reason: str, orders: Orders) -> Outcome:
    """`reason`: the report's first line, which becomes the drain's reason."""
    if is_critical(report):
        return _bad(report, reason, orders)
    says = _resumed(orders) if report.verdict is Verdict.OK and orders.resume and orders.mode != REPORT_ONLY else ()
    if orders.mode is None:
        return Outcome(EXIT_CODES[report.verdict], says)
    return Outcome(0, (f"{PASS}, {_why_not_critical(report)}", *says))


def is_critical(report: Report) -> bool:
    return any(finding.severity is Severity.CRITICAL for finding in report.findings)


def _bad(report: Report, reason: str, orders: Orders) -> Outcome:
    if orders.mode == REPORT_ONLY:
        return Outcome(0, (f"{PASS}, {REPORT_ONLY}: to enforce is to reject",))
    if orders.mode is None and not orders.drain:
        return Outcome(EXIT_CODES[report.verdict])
    objection = orders.objection()
    if objection:
        said = f"{PASS}, not drained: {objection}"
        return Outcome(0 if orders.mode else EXIT_CODES[report.verdict], (said,))
    says = _drained(reason, orders) if orders.drain else ()
    return Outcome(1, (*says, REJECT) if orders.mode else says)


def _drained(reason: str, orders: Orders) -> tuple[str, ...]:
    try:
        return (f"slurm: {orders.slurm.drain(reason)}",)
    except SlurmError as error:
        return (f"slurm: not drained: {error}",)


def _resumed(orders: Orders) -> tuple[str, ...]:
    try:
        done = orders.slurm.resume()
    except SlurmError as error:
        return (f"slurm: not resumed: {error}",)
    return (f"slurm: {done}",) if done else ()


def _why_not_critical(report: Report) -> str:
    return {
        Verdict.OK: "nothing critical",
        Verdict.FAIL: "warnings alone",
    }.get(report.verdict, "what is unknown rejects no job")
