"""`laggard healthcheck`: is this node fit for a job? For prologs, epilogs, timers and people."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from laggard import wire
from laggard.agent.gate_text import render
from laggard.agent.profiles import DEFAULT, PROFILES, Profile, choose, find_profile
from laggard.errors import UsageError
from laggard.model import EXIT_CODES, Report, Verdict
from laggard.probes.host import Host
from laggard.probes.runner import run


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage"
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.report/1")
    parser.add_argument(
        "--profile",
        default=DEFAULT,
        metavar="NAME|FILE",
        help=f"how strictly: {', '.join(PROFILES)}, or a YAML file (default: {DEFAULT})",
    )
    parser.add_argument("--host-root", metavar="DIR", help="judge the machine recorded in DIR instead of this one")
    parser.add_argument("--only", action="append", default=[], metavar="PROBE", help="run this probe (repeatable)")
    parser.add_argument("--skip", action="append", default=[], metavar="PROBE", help="leave out (repeatable)")
    parser.add_argument("--deadline", type=_seconds, metavar="SECONDS", help="answer within this time, come what may")


def main(arguments: argparse.Namespace) -> int:
    profile = find_profile(arguments.profile)
    probes = choose(profile, arguments.only, arguments.skip, f"profile {arguments.profile}")
    report = run(
        _host(arguments.host_root),
        probes,
        deadline_seconds=arguments.deadline or profile.deadline_seconds,
        warnings_fail=profile.warnings_fail,
    )
    report = _strict(report, profile)
    text = wire.encode(report).decode() + "\n" if arguments.format == "json" else render(report)
    sys.stdout.write(text)
    sys.stdout.flush()
    return EXIT_CODES[report.verdict]


def _strict(report: Report, profile: Profile) -> Report:
    could_not_tell = report.verdict in (Verdict.UNKNOWN, Verdict.SKIPPED)
    if could_not_tell and profile.unknown == "fail":
        return msgspec.structs.replace(report, verdict=Verdict.FAIL)
    return report


def _host(root: str | None) -> Host:
    if root is None:
        return Host()
    if not os.path.isdir(root):
        raise UsageError(f"no directory {root}: --host-root takes the folder of a recorded machine")
    if os.path.realpath(root) == "/":
        raise UsageError("--host-root / is this machine itself: leave the flag out")
    return Host(root)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and below a day")
    return seconds
