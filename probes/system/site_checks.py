"""SITE_CHECK_FAILED: a check of the site's own says that this node is not fit.

A line of /etc/laggard/checks.yaml is a check: a program, or NHC with its own lines. Each runs as a probe of its own, in
a process with a deadline, beside the others. The contract is that of node-problem-detector's custom plugins: exit
status 0 is ok, 1 a problem, any other one unknown, and standard output is the message (docs/site-checks.md).

The programs run as root, since they judge the machine and not an account: by the gate, and by an agent that is root.
Any other agent asks laggard-checks.socket, behind which systemd starts this probe as root.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from laggard.kit.config import parse
from laggard.kit.errors import UsageError
from laggard.kit.limits import MAX_TEXT
from laggard.kit.processes import signal_name
from laggard.kit.words import printable_line
from laggard.model import Finding, Report, Severity
from laggard.probes.errors import NotApplicable, Unknown, Unreadable
from laggard.probes.host.host import Host
from laggard.probes.host.program import ProgramEnd
from laggard.probes.probe import Fact, Probe, Thresholds, say
from laggard.probes.profiles import covers
from laggard.wire import WireError, decode

if TYPE_CHECKING:
    from laggard.probes.system.model.site_lines import Nhc, SiteCheck

SOCKET: Final = "/run/laggard/checks.sock"
_SPARE_SECONDS: Final = 0.3
"""The time to end what hangs, and to tell of it, before this probe's own process is ended."""
_MAX_REPORT_BYTES: Final = 1 << 20
_NHC: Final = "NHC's lines"  # the name of no other check: it has a blank


class SiteThresholds(Thresholds, frozen=True):
    file: str = "/etc/laggard/checks.yaml"
    """Root's alone to write. Where there is none, nothing is checked."""


def check(host: Host, thresholds: SiteThresholds) -> Iterator[Finding | Fact | Unreadable]:
    lines = _lines(host, thresholds.file)
    if not lines:
        raise NotApplicable(f"{thresholds.file} has no check for this node")
    seconds = max(min(host.ends_at - time.monotonic(), PROBE.deadline_seconds) - _SPARE_SECONDS, _SPARE_SECONDS)
    if host.recorded or os.geteuid() == 0:
        report = host.run(lines, deadline_seconds=seconds)
        yield Fact("checks", {it.name: it.reason or it.verdict.value for it in report.probes})
    else:
        report = _of_root(seconds)
        yield Fact("checks", report.facts.get(PROBE.name, {}).get("checks"))
    yield from report.findings
    for it in filter(lambda it: it.unknown, report.probes):
        yield Unreadable(it.unknown if it.name == PROBE.name else f"{it.name}: {it.unknown}")


def _text(host: Host, path: str) -> str:
    text = host.read_if_present(path)
    if not text:
        raise NotApplicable(f"the site has no checks of its own ({path})")
    return text


def _lines(host: Host, path: str) -> list[Probe]:
    """A probe for each check of this node. Raises Unknown, and NotApplicable where there is no file."""
    text = _text(host, path)
    if problem := host.written_by_others(path):
        raise Unknown(f"{path} {problem}")
    from laggard.probes.system.model.site_lines import SiteChecks  # slow, and many sites have no checks

    try:
        checks = parse(text, SiteChecks, path)
        mine = {name: it for name, it in checks.checks.items() if covers(it.nodes, host.node()) and it.argv}
    except (UsageError, ValueError, re.error) as error:
        where = "" if isinstance(error, UsageError) else f"{path}: "
        raise Unknown(f"{where}{error}: no check of the site's own runs") from None
    probes = [Probe(name, partial(_run_check, name), it, it.seconds + 2 * _SPARE_SECONDS) for name, it in mine.items()]
    if nhc := checks.nhc:
        probes.append(Probe(_NHC, _run_nhc, nhc, nhc.seconds + 2 * _SPARE_SECONDS))
    return probes


def _run_check(name: str, host: Host, line: SiteCheck) -> Iterator[Finding]:
    end = _run(host, name, line, "")
    said = next(filter(None, map(printable_line, end.output.splitlines())), "")
    if end.status in line.status:
        summary = said or f"exit status {end.status}, and it printed nothing"
        yield _finding(name, summary, line.status[end.status], line.run, line.fix)
    elif end.status and not end.problem:
        how = f"exit status {end.status}" if end.status > 0 else f"killed by {signal_name(-end.status)}"
        raise Unknown(f"{said or 'it printed nothing'} ({how})")
    if end.problem:
        raise Unknown(f"{line.run} {end.problem}")


def _run_nhc(host: Host, line: Nhc) -> Iterator[Finding]:
    from laggard.probes.system.model.site_lines import NHC_END, read_nhc

    text = f"{host.read(line.conf) if line.conf else ''}\n{line.lines}\n"  # bash reads no line without an end
    if line.conf and (problem := host.written_by_others(line.conf)):
        raise Unknown(f"{line.conf} {problem}")
    end = _run(host, _NHC, line, text)
    ran = read_nhc(end.output)
    for check_line, why in ran.items():
        if why:
            yield _finding(check_line, why, line.severity, line.by_hand(check_line), "")
    if end.problem or not end.output.rstrip().endswith(NHC_END):
        at = f" at `{[*ran][-1]}`; the lines after it did not run" if ran else ": is it NHC 1.4.2 or newer?"
        raise Unknown(f"{line.program} {end.problem or 'ended early'}{at}")


def _run(host: Host, name: str, line: SiteCheck | Nhc, text: str) -> ProgramEnd:
    left = host.ends_at - time.monotonic() - _SPARE_SECONDS
    return host.run_program(name, line.argv, text, min(line.seconds, left))


def _finding(device: str, summary: str, severity: str, command: str, fix: str) -> Finding:
    kind = "site_check_with_fix" if fix else "site_check"
    told = {"told": printable_line(summary, MAX_TEXT), "fix": fix, "run": command}
    return say("system", kind, device, {"run": command}, Severity(severity), **told)


def _of_root(seconds: float) -> Report:
    """The report of laggard-checks.socket, behind which root runs this probe alone. Raises Unknown."""
    import socket  # slow, and root needs none

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(seconds)
            connection.connect(SOCKET)
            return decode(connection.makefile("rb").read(_MAX_REPORT_BYTES), Report)
    except (OSError, WireError) as error:
        how = "systemctl enable --now laggard-checks.socket"
        raise Unknown(f"the site's checks run as root, and {SOCKET} gives no answer ({error}): {how}") from None


PROBE: Final = Probe(
    "site_checks", check, SiteThresholds(), deadline_seconds=60.0, needs=lambda host, it: _text(host, it.file)
)
