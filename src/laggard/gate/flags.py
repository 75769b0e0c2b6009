"""The gate's flags, and which of them exclude each other."""

from __future__ import annotations

import argparse
import os

from laggard.constants import AGENT_PORT
from laggard.errors import UsageError
from laggard.gate.drain_cap import NO_CAP
from laggard.gate.policy import MODES
from laggard.gate.slurm import SCONTROL
from laggard.probes.probe import Probe
from laggard.probes.profiles import DEFAULT, PROFILES, Profile, choose_probes, find_profile, with_expectations
from laggard.rings.place import add_place

KILL_SWITCH = "/etc/laggard/disabled"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 nothing wrong, 1 something wrong was found, 2 could not tell, 64 wrong usage; "
        "with --gate report-only always 0, with --gate enforce 1 for critical findings alone, else 0"
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
        type=_seconds,
        metavar="SECONDS",
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
    add_place(parser.add_argument_group("for --gang, where srun, torchrun or SLURM's prolog do not tell"))
    _configure_slurm(parser.add_argument_group("for SLURM, see deploy/slurm"))


def _configure_slurm(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gate", choices=MODES, help="what the exit status tells SLURM, which drains on any but 0")
    group.add_argument("--drain", action="store_true", help="on a critical finding drain this node, with the reason")
    group.add_argument("--resume", action="store_true", help="where all is ok resume it, if laggard drained it")
    group.add_argument("--slurm-node", metavar="NAME", help="this node's name in SLURM (default: SLURMD_NODENAME)")
    group.add_argument(
        "--collector",
        type=lambda text: text.rstrip("/"),
        metavar="URL",
        help=f"who caps how many nodes may be drained, or {NO_CAP} for no cap",
    )
    group.add_argument(
        "--check-gate",
        action="store_true",
        help="check the gate's own setup: collector, node's name, SLURM; alone, exit status 1 where something is wrong",
    )
    group.add_argument(
        "--gate-seconds", type=_whole_seconds, metavar="N", help="with --check-gate alone: GATE_SECONDS, to compare"
    )
    group.add_argument("--gang-seconds", type=_whole_seconds, metavar="N", help="the same of GANG_SECONDS")
    group.add_argument("--gang-token", metavar="FILE", help="the same of GANG_TOKEN")
    group.add_argument("--gate-mode", metavar="WORD", help="the same of MODE, whatever it is")
    group.add_argument(
        "--gate-flags", nargs=argparse.REMAINDER, default=[], metavar="WORD", help="the same of FLAGS; last of all"
    )
    group.add_argument(
        "--verbose",
        action="store_true",
        help="with --gate: all findings and probes, not one line; without: also the probes that were skipped",
    )
    group.add_argument("--scontrol", default=SCONTROL, metavar="FILE", help=f"default: {SCONTROL}")
    group.add_argument(
        "--kill-switch", default=KILL_SWITCH, metavar="FILE", help=f"where it is, do nothing (default: {KILL_SWITCH})"
    )


def check_flags(arguments: argparse.Namespace) -> None:
    """Raises UsageError for flags that do not go together. A drain needs --collector, if only to say that there is no
    cap; a gate without one judges, and complains of it each time, since nobody reads a prolog's usage errors."""
    if arguments.drain and arguments.gate is None and not arguments.check_gate and not arguments.collector:
        raise UsageError(f"add --collector URL, which caps how many nodes may be drained, or --collector {NO_CAP}")
    if arguments.active and arguments.host_root is not None:
        raise UsageError("--active loads the GPUs of this machine: a recorded one (--host-root) has none to load")
    if not arguments.scontrol.startswith("/"):
        raise UsageError(f"--scontrol takes an absolute path, not {arguments.scontrol!r}")


def chosen_probes(arguments: argparse.Namespace) -> tuple[Profile, tuple[Probe, ...]]:
    """The profile and the probes that the flags ask for. Raises UsageError."""
    profile = find_profile(arguments.profile)
    profile = with_expectations(profile, arguments.expect) if arguments.expect else profile
    where, active = f"profile {arguments.profile}", arguments.active or profile.active
    return profile, choose_probes(profile, arguments.only, arguments.skip, where, active)


def is_disabled(arguments: argparse.Namespace) -> bool:
    """Whether the kill-switch file is there. It counts only where the gate may act on SLURM; a file that cannot be
    checked counts as there."""
    if not (arguments.gate or arguments.drain or arguments.resume):
        return False
    return is_switched_off(arguments.kill_switch)


def is_switched_off(kill_switch: str) -> bool:
    """Whether the file is there, or cannot be checked."""
    try:
        os.lstat(kill_switch)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and below a day")
    return seconds


def _whole_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 86400):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds above 0 and below a day")
    return int(text)


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return port
