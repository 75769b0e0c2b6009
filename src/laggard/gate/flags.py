"""The gate's flags, and the settings that are made of them. Wrong usage is told here, before anything is
measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from laggard.gate.measure import parse_gpus
from laggard.gate.settings import MODES, NO_CAP, REPORT_ONLY, Gang, GateConf, GateSettings, SlurmSettings, Subject
from laggard.gate.slurm import SCONTROL
from laggard.gate.time_limit import limit_from_start
from laggard.kit.constants import ACCEPTED_FILE, AGENT_PORT
from laggard.kit.errors import UsageError
from laggard.kit.flags import add_collector, complete, duration
from laggard.probes.choose import choose_probes, is_active
from laggard.probes.host.host import open_host
from laggard.probes.probe import Probe
from laggard.probes.profiles import DEFAULT, PROFILES, Profile, find_profile, with_expectations
from laggard.rings.place import Meeting, add_meeting, find_place, meeting_of, read_tokens

if TYPE_CHECKING:
    from laggard.rings.membership import Membership

_MAX_START_SECONDS = 60.0
"""The longest time that a start can take: a clock of a container may be another than the process' own."""

KILL_SWITCH = "/etc/laggard/disabled"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage; "
        "with --gate report-only always 0, with --gate enforce 1 for critical findings alone, else 0. "
        "A site's own checks, and NHC's, are lines of /etc/laggard/checks.yaml (docs/site-checks.md)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one laggard.report/1")
    parser.add_argument(
        "--profile",
        default=DEFAULT,
        metavar="NAME|FILE",
        help=f"how strictly: {', '.join(PROFILES)}, or a YAML file (default: {DEFAULT})",
    )
    parser.add_argument("--expect", metavar="FILE", help="YAML with `thresholds:` that go over the profile's")
    parser.add_argument("--host-root", metavar="DIR", help="judge the machine recorded in DIR instead of this one")
    parser.add_argument("--only", action="append", default=[], metavar="PROBE", help="run this probe (repeatable)")
    parser.add_argument("--skip", action="append", default=[], metavar="PROBE", help="leave it out (repeatable)")
    parser.add_argument("--active", action="store_true", help="also load the GPUs for seconds: speed, right results")
    parser.add_argument(
        "--gang", action="store_true", help="with --active, on each node of a job: they also measure one another"
    )
    parser.add_argument(
        "--deadline",
        type=duration(0.001, 86400),
        metavar="TIME",
        help="end within this time in any case: probes, collector and SLURM together",
    )
    parser.add_argument(
        "--gpus",
        metavar="LIST",
        help="judge these GPUs and what all share, by device minor as in SLURM_JOB_GPUS (default: that variable)",
    )
    parser.add_argument("--agent-port", type=_port, default=AGENT_PORT, metavar="PORT", help="of this node's agent")
    parser.add_argument(
        "--no-agent", action="store_true", help="run the probes, also where the agent has a fresh report"
    )
    parser.add_argument(
        "--explain-drain",
        action="store_true",
        help="list each code that can take this node away: its rule, what looks like it, what there is of it now",
    )
    add_meeting(parser.add_argument_group("for --gang, where srun, torchrun or SLURM's prolog do not tell"))
    _configure_slurm(parser.add_argument_group("for SLURM, see deploy/slurm"))
    _configure_accept(parser.add_argument_group("for findings that are to fail nothing for a while; checks nothing"))


def _configure_accept(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--accept",
        nargs="?",
        const="",
        metavar="CODE[:DEVICE]",
        help="as root: accept this finding here, of this device alone; without CODE: list what is accepted",
    )
    group.add_argument(
        "--until", metavar="TIME", help="then it counts again: 8h, 7d, 2026-12-01T08:00+01:00; now: from here on"
    )
    group.add_argument("--reason", metavar="TEXT", help="why, for those who read it later")
    group.add_argument(
        "--accepted", default=ACCEPTED_FILE, metavar="FILE", help=f"where that is kept (default: {ACCEPTED_FILE})"
    )


def _configure_slurm(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gate", choices=MODES, help="what the exit status tells SLURM, which drains on any but 0")
    group.add_argument("--drain", action="store_true", help="on a critical finding drain this node, with the reason")
    group.add_argument("--resume", action="store_true", help="where all is ok resume it, if laggard drained it")
    group.add_argument("--slurm-node", metavar="NAME", help="this node's name in SLURM (default: SLURMD_NODENAME)")
    add_collector(group, f"who caps how many nodes may be drained, as URL, or {NO_CAP} for no cap", None)
    group.add_argument(
        "--check-gate",
        action="store_true",
        help="check the gate's own setup: collector, node's name, SLURM; alone, exit status 1 where something is wrong",
    )
    group.add_argument(
        "--gate-seconds", type=_whole_seconds, metavar="N", help="with --check-gate alone: GATE_SECONDS, to compare"
    )
    group.add_argument("--gang-seconds", type=_whole_seconds, help=argparse.SUPPRESS)
    group.add_argument("--gang-token", help=argparse.SUPPRESS)
    group.add_argument("--gate-mode", help=argparse.SUPPRESS)
    group.add_argument("--gate-flags", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    group.add_argument(
        "--verbose",
        action="store_true",
        help="also evidence, what to do, times and each probe; with --gate: all findings, not one line",
    )
    group.add_argument("--scontrol", default=SCONTROL, metavar="FILE", help=argparse.SUPPRESS)
    group.add_argument("--kill-switch", default=KILL_SWITCH, metavar="FILE", help=argparse.SUPPRESS)


def make_settings(arguments: argparse.Namespace) -> GateSettings:
    """The settings of this run, whose time began with its process. Raises UsageError."""
    slurm = _slurm(arguments)
    limit = limit_from_start(arguments.deadline, slurm.may_act, _own_age() if arguments.deadline else 0.0)
    check_flags(arguments)
    gang = _gang(arguments)
    profile, probes = _chosen_probes(arguments)
    host = open_host(arguments.host_root)
    checks_setup_alone = arguments.check_gate and not arguments.gate
    is_switched_off = (slurm.may_act or checks_setup_alone) and _is_there(arguments.kill_switch)
    judges = not is_switched_off and not checks_setup_alone  # else a wrong list of GPUs changes no exit status
    return GateSettings(
        limit=limit,
        subject=Subject(
            host=host,
            profile=profile,
            probes=tuple(probe for probe in probes if not is_active(probe)),
            active_probes=tuple(probe for probe in probes if is_active(probe)),
            gpus=_gpus(arguments.gpus) if judges else None,
            agent_port=arguments.agent_port if _agent_knows(arguments, profile) and not host.recorded else None,
        ),
        gang=gang,
        slurm=slurm,
        accepted=arguments.accepted,
        kill_switch=arguments.kill_switch,
        is_switched_off=is_switched_off,
        checks_setup=arguments.check_gate,
        gate_conf=_gate_conf(arguments) if checks_setup_alone else None,
        explains_drain=arguments.explain_drain,
        as_json=arguments.format == "json",
        verbose=arguments.verbose,
    )


class OwnFlags(msgspec.Struct, frozen=True):
    """What FLAGS of gate.conf ask for that `--check-gate` has to know: whose setup it is."""

    host_root: str | None = None
    slurm_node: str | None = None
    expect: str | None = None


def parse_own_flags(words: Sequence[str]) -> OwnFlags:
    """Parses FLAGS of gate.conf as the scripts pass them. Raises UsageError where the gate would: but for the gang's,
    which are right or wrong on the nodes of a job."""
    parser = _Parser(prog="laggard healthcheck", add_help=False, allow_abbrev=False)
    configure(parser)
    complete(parser)
    arguments, rest = parser.parse_known_args(["--gate", REPORT_ONLY, *words])
    if rest:
        raise UsageError(f"unknown argument {rest[0]!r}")
    check_flags(arguments)
    _chosen_probes(arguments)
    return OwnFlags(arguments.host_root, arguments.slurm_node, arguments.expect)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UsageError for flags that do not go together. A drain needs --collector, if only to say that there is no
    cap; a gate without one judges, and complains of it each time, since nobody reads a prolog's usage errors."""
    if arguments.drain and arguments.gate is None and not arguments.check_gate and not arguments.collector:
        raise UsageError(f"add --collector URL, which caps how many nodes may be drained, or --collector {NO_CAP}")
    if arguments.explain_drain and (arguments.gate or arguments.drain or arguments.resume or arguments.check_gate):
        raise UsageError("--explain-drain changes nothing: leave out --gate, --drain, --resume and --check-gate")
    if arguments.active and arguments.host_root is not None:
        raise UsageError("--active loads the GPUs of this machine: a recorded one (--host-root) has none to load")
    if arguments.accept is not None and (
        arguments.gate or arguments.drain or arguments.resume or arguments.check_gate or arguments.explain_drain
    ):
        raise UsageError("--accept checks nothing: leave out --gate, --drain, --resume, --check-gate, --explain-drain")
    if not arguments.accept and (arguments.until or arguments.reason):
        raise UsageError("--until and --reason are for --accept CODE")
    if not arguments.scontrol.startswith("/"):
        raise UsageError(f"--scontrol takes an absolute path, not {arguments.scontrol!r}")


def _chosen_probes(arguments: argparse.Namespace) -> tuple[Profile, tuple[Probe, ...]]:
    """The profile and the probes that the flags ask for. Raises UsageError."""
    profile = find_profile(arguments.profile)
    profile = with_expectations(profile, arguments.expect) if arguments.expect else profile
    where, active = f"profile {arguments.profile}", arguments.active or profile.active
    node = open_host(arguments.host_root).node() if profile.nodes else ""
    return profile, choose_probes(
        profile, arguments.only, arguments.skip, where, _active_probes() if active else (), node
    )


def _active_probes() -> tuple[Probe, ...]:
    from laggard.probes.active_registry import ACTIVE_PROBES  # most gates run none of them, and start sooner without

    return ACTIVE_PROBES


def _gpus(text: str | None) -> frozenset[int] | None:
    """None: --gpus names none. Raises UsageError."""
    gpus = parse_gpus(text) if text else None
    if text and gpus is None:
        raise UsageError(f"--gpus takes numbers such as 0,1,4-7, not {text!r}")
    return gpus


def _agent_knows(arguments: argparse.Namespace, profile: Profile) -> bool:
    """Whether the agent's last report answers the same question: all probes, judged as the agent judges them. To resume
    a node, and to explain, the gate runs the probes itself: the agent's report may be older than the drain."""
    asks_for_more = arguments.only or arguments.skip or arguments.expect or profile.warnings_fail
    is_fresh = arguments.resume or arguments.explain_drain or arguments.no_agent
    return bool(profile.agent_seconds) and not asks_for_more and not is_fresh


def _gang(arguments: argparse.Namespace) -> Gang | None:
    """None: no gang was asked for. Raises UsageError."""
    meeting = meeting_of(arguments)
    if not arguments.gang:
        if meeting.is_told:
            raise UsageError("--rendezvous, --nodes and --node-rank are for --gang")
        return None
    if not arguments.active:
        raise UsageError("--gang loads the GPUs of all nodes: add --active")
    place, tokens = _gang_place(meeting), read_tokens(meeting.token_file)
    if not tokens and arguments.drain:
        raise UsageError(
            "--gang with --drain needs --token-file: without a secret, anybody who can reach the port may accuse nodes"
        )
    return Gang(place, tokens, meeting.join_seconds)


def _gang_place(meeting: Meeting) -> Membership | None:
    """None: the only node of SLURM's job. Raises UsageError."""
    from laggard.rings import membership  # few gates have a gang, and the others start sooner without

    place = find_place(meeting) or membership.from_prolog(os.environ)
    if place is None and "SLURM_JOB_ID" not in os.environ:
        raise UsageError(
            "--gang has no job whose nodes could meet: start it with srun or torchrun, as SLURM's prolog, or give "
            "--rendezvous HOST:PORT --nodes N --node-rank I"
        )
    return place


def _slurm(arguments: argparse.Namespace) -> SlurmSettings:
    return SlurmSettings(
        mode=arguments.gate,
        drain=arguments.drain,
        resume=arguments.resume,
        collector=arguments.collector and arguments.collector.rstrip("/"),
        node=arguments.slurm_node,
        slurmd_node=os.environ.get("SLURMD_NODENAME", ""),
        scontrol=arguments.scontrol,
    )


def _gate_conf(arguments: argparse.Namespace) -> GateConf:
    return GateConf(
        mode=arguments.gate_mode,
        flags=tuple(arguments.gate_flags),
        gate_seconds=arguments.gate_seconds,
        gang_seconds=arguments.gang_seconds,
        gang_token=arguments.gang_token,
    )


def _own_age() -> float:
    """The seconds since this process was started, for the gate's scripts count from there: where fifty prologs start at
    once, Python's own start takes seconds. 0 where that is not known, or this is another program that runs the gate."""
    if "healthcheck" not in sys.argv[1:2]:
        return 0.0
    from laggard.kit.processes import read_stat

    stat = read_stat(os.getpid())
    age = stat.age_seconds if stat else 0.0
    return age if 0 < age < _MAX_START_SECONDS else 0.0


def _is_there(kill_switch: str) -> bool:
    """Whether the file is there. A file that cannot be checked counts as there."""
    try:
        os.lstat(kill_switch)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _whole_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 86400):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds above 0 and below a day")
    return int(text)


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return port
