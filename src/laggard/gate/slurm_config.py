"""What in SLURM's configuration keeps the gate from its work, or does not go with gate.conf or with this node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from laggard.gate.settings import GateConf
from laggard.gate.slurm import Slurm, SlurmError
from laggard.kit.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.kit.secret_files import exposure

_NO_TIMEOUT: Final = 65534
"""SLURM prints this 16-bit NO_VAL for a timeout that is not set: it then waits for ever."""

_HEALTH_CHECK_SECONDS: Final = 60
"""After which slurmd kills HealthCheckProgram (slurm.conf(5))."""

_MARGIN_SECONDS: Final = 5
_MIN_SECONDS: Final = 5
"""Of the gate: laggard's start, the probes, the collector and scontrol have to fit in."""

_PRIVATE: Final = ("JobContainerType", "NamespaceType")
"""SLURM's setting that gives jobs directories of their own, and its name in newer versions."""

_GANG_SCRIPT: Final = "prolog-gang.sh"
_PROLOGS: Final = ("prolog.sh", _GANG_SCRIPT)
_HEALTH_CHECKS: Final = ("healthcheck.sh",)
_MAX_SCRIPT_BYTES: Final = 1 << 16
_SNIPPET: Final = "add the lines of deploy/slurm/slurm.conf.snippet"


def config_problems(slurm: Slurm, conf: GateConf) -> list[str]:
    """One line for each mistake. Where SLURM does not answer there is none: gate_problems() tells of that."""
    try:
        config = slurm.config()
    except SlurmError:
        return []
    limits = _limit_problems(config, conf.gate_seconds, conf.gang_seconds) if conf.gate_seconds else []
    gang = _gang_problems(config, conf.gang_token) if conf.gang_token else []
    return [*_script_problems(config), *_job_problems(config), *limits, *gang, *_rank_problems(config)]


def _script_problems(config: Mapping[str, str]) -> list[str]:
    """Which of the gate's scripts SLURM does not run, and which it would not find here."""
    problems = []
    for name, scripts, so in (
        ("Prolog", _PROLOGS, "no job is judged, and none is rejected"),
        ("HealthCheckProgram", _HEALTH_CHECKS, "no node is drained between jobs, and none is resumed"),
    ):
        values = _values(config, name)
        if not values:
            problems.append(f"slurm.conf has no {name}, so {so}: {_SNIPPET}")
        elif not any(_runs(value, scripts) for value in values):
            problems.append(f"{name} of slurm.conf is {values[0]}, which does not run laggard's {scripts[0]}, so {so}")
    if config.get("HealthCheckInterval", "").partition(" ")[0] == "0" and _values(config, "HealthCheckProgram"):
        problems.append(f"HealthCheckInterval of slurm.conf is 0, so that the health check never runs: {_SNIPPET}")
    return problems + [
        f"{name} of slurm.conf is {value}, which is not on this node: SLURM drains it at its next job, with the reason "
        "`Prolog error`"
        for name in ("Prolog", "Epilog")
        for value in _values(config, name)
        if value.startswith("/") and not _files(value)
    ]


def _job_problems(config: Mapping[str, str]) -> list[str]:
    """What SLURM would do to a job that the prolog rejects."""
    problems = []
    if "nohold_on_prolog_fail" not in config.get("SchedulerParameters", "").lower().split(","):
        problems.append(
            "SchedulerParameters of slurm.conf has no nohold_on_prolog_fail, so that SLURM holds a rejected job until "
            f"somebody releases it: {_SNIPPET}"
        )
    flags = config.get("PrologFlags", "").lower().split(",")
    if not {"alloc", "contain", "x11"} & set(flags):
        problems.append(
            "PrologFlags of slurm.conf has no Alloc, so that nodes are not judged before a job's first step there: "
            f"{_SNIPPET}, and restart slurmctld and the slurmds"
        )
    if "deferbatch" not in flags:
        problems.append(
            "PrologFlags of slurm.conf has no DeferBatch, so that a batch script starts while another node's prolog is "
            f"still failing: {_SNIPPET}, and restart slurmctld and the slurmds"
        )
    return problems


def _gang_problems(config: Mapping[str, str], token: str) -> list[str]:
    """Whether the gang's nodes can know one another by their secret, where SLURM runs the gang's prolog."""
    if not any(_GANG_SCRIPT in value for value in _values(config, "Prolog")):
        return []
    if not os.path.isfile(token):
        return [
            f"there is no GANG_TOKEN={token}, so that {_GANG_SCRIPT} judges nothing: make the secret once, and put it "
            "on all nodes (deploy/slurm/README.md)"
        ]
    text = exposure(token)
    return [f"GANG_TOKEN={token} {text}"] if text else []


def _values(config: Mapping[str, str], name: str) -> list[str]:
    """The value that is set for `name`. Newer SLURM has several prologs, as `Prolog[0]` and so on."""
    found = [value for key, value in config.items() if key.partition("[")[0] == name]
    return [value for value in found if value not in ("", "(null)", "none")]


def _runs(value: str, scripts: tuple[str, ...]) -> bool:
    """Whether one of the files that `value` names is one of `scripts`, or speaks of one or of laggard. What cannot be
    read may be."""
    for path in (value, *_files(value)):
        if os.path.basename(path) in scripts:
            return True
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_MAX_SCRIPT_BYTES)
        except PermissionError:
            return True
        except OSError:
            continue
        if any(word in text for word in (*scripts, "laggard")):
            return True
    return False


def _files(value: str) -> list[str]:
    """SLURM takes a pattern for several scripts."""
    from glob import glob  # the gate, which starts before each job, checks no configuration

    return [path for path in glob(value) if os.path.isfile(path)]


def _rank_problems(config: Mapping[str, str]) -> list[str]:
    """Whether jobs write their rank files where no agent sees them: into a /dev/shm of their own."""
    private = [
        f"{name}={config[name]}" for name in _PRIVATE if config.get(name, "").rpartition("/")[2] in ("tmpfs", "linux")
    ]
    if not private or os.path.isdir(SHARED_RANK_DIR):
        return []
    return [
        f"there is no {SHARED_RANK_DIR}, and {private[0]} gives each job a {FALLBACK_RANK_DIR} of its own, so that the "
        "agent sees no ranks: install deploy/systemd/tmpfiles.d/laggard.conf and run `systemd-tmpfiles --create`"
    ]


def _limit_problems(config: Mapping[str, str], gate_seconds: int, gang_seconds: int | None) -> list[str]:
    """One line for each script that SLURM would kill before its own limit, and then drain the node."""
    prolog = ", ".join(_values(config, "Prolog"))
    setting, seconds = "GATE_SECONDS", gate_seconds
    if gang_seconds and _GANG_SCRIPT in prolog:
        setting, seconds = "GANG_SECONDS", gang_seconds
    problems = [
        f"{name} of slurm.conf is {limit} s, after which SLURM kills the {script} and drains the node, while gate.conf "
        f"gives it {own}={most} s: set {name} to {_above(most)} or more, or lower {own}"
        for name, script, own, most in (
            ("PrologEpilogTimeout", "prolog", setting, seconds),
            ("PrologTimeout", "prolog", setting, seconds),
            ("EpilogTimeout", "epilog", "GATE_SECONDS", gate_seconds),
        )
        if (limit := _timeout(config.get(name, ""))) is not None and limit < _above(most)
    ]
    if gate_seconds < _MIN_SECONDS:
        problems.append(
            f"GATE_SECONDS of gate.conf is {gate_seconds} s, in which the gate does not get to a decision, so that "
            f"every job passes: set it to {_MIN_SECONDS} or more (default: 15)"
        )
    if _above(gate_seconds) > _HEALTH_CHECK_SECONDS:
        problems.append(
            f"GATE_SECONDS of gate.conf is {gate_seconds} s, and SLURM kills HealthCheckProgram after "
            f"{_HEALTH_CHECK_SECONDS} s: set it to {_HEALTH_CHECK_SECONDS - _MARGIN_SECONDS} or less"
        )
    return problems


def _above(seconds: int) -> int:
    """SLURM's limit for a script that takes `seconds`: a busy node starts and ends it late."""
    return seconds + _MARGIN_SECONDS


def _timeout(value: str) -> int | None:
    """The seconds of a timeout in SLURM's configuration; None where SLURM waits for ever."""
    number = value.partition(" ")[0]
    if not (number.isascii() and number.isdecimal() and len(number) < 8):
        return None
    return int(number) if 0 < int(number) < _NO_TIMEOUT else None
