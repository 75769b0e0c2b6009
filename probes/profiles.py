"""Profiles of the gate: which probes, how long, and how strictly what they say is taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from laggard.config import Settings, load
from laggard.errors import UsageError
from laggard.probes.probe import Probe
from laggard.probes.registry import ACTIVE_PROBES, PROBES

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Profile(Settings, frozen=True):
    """What `--profile FILE` may hold. Without a word it is the profile `full`."""

    deadline_seconds: Seconds = 30.0
    """For all probes together; each has its own, shorter one besides."""

    only: tuple[str, ...] = ()
    """The probes to run; none named: all."""

    skip: tuple[str, ...] = ()

    warnings_fail: bool = False

    unknown: Literal["unknown", "fail"] = "unknown"
    """What not being able to tell amounts to: exit status 2, or 1. There is no way to make it 0."""

    thresholds: dict[str, dict[str, Any]] = {}
    """By probe, the thresholds to change."""

    active: bool = False
    """Also run the probes that load the GPUs, as `--active` does. A daemon never does, whatever its profile says."""

    active_deadline_seconds: Seconds = 120.0
    """For those together."""

    agent_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """A report of this node's agent up to this age is taken instead of looking; 0: never."""


class Expectations(Settings, frozen=True):
    """What `--expect FILE` holds: by probe, the thresholds whose values this cluster knows, over the profile's."""

    thresholds: dict[str, dict[str, Any]] = {}


AGENT_SECONDS: Final = 90.0
"""The agent looks each minute, for at most ten seconds: what is older is not this minute's any more."""

ACTIVE_NAMES: Final = frozenset(probe.name for probe in ACTIVE_PROBES)

DEFAULT: Final = "full"

# Each says what not being able to tell amounts to. `unknown` is exit status 2 for whoever asks; SLURM, which drains on
# any status but 0, is never told of it (--gate): a check that cannot look must not empty a cluster. It is reported,
# logged and exported by the agent.
PROFILES: Final[Mapping[str, Profile]] = {
    # A job waits: SLURM's PrologTimeout and people's patience are the limits.
    "prolog": Profile(
        deadline_seconds=5.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"gpu_busy": {"idle_expected": True}},
    ),
    # What the job just broke, the agent may not have seen yet: the gate looks itself.
    "epilog": Profile(deadline_seconds=5.0, unknown="unknown"),
    # Run by a timer or a daemon, whose own limits are not those of a job.
    "periodic": Profile(
        deadline_seconds=10.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"limits": {"memlock_own_severity": "warning"}},
    ),
    "full": Profile(unknown="unknown"),
}


def find_profile(name: str) -> Profile:
    """The profile of that name, or in that file. Raises UsageError."""
    if name in PROFILES:
        return PROFILES[name]
    if not os.path.exists(name):
        raise UsageError(f"no profile {name!r}: say {', '.join(PROFILES)}, or the path of a YAML file")
    return load(name, Profile)


def expecting(profile: Profile, path: str) -> Profile:
    """The profile with the thresholds of the file at `path` over its own. Raises UsageError."""
    expected = load(path, Expectations).thresholds
    merged = {name: {**profile.thresholds.get(name, {}), **values} for name, values in expected.items()}
    return msgspec.structs.replace(profile, thresholds={**profile.thresholds, **merged})


def choose(
    profile: Profile, only: Iterable[str], skip: Iterable[str], where: str, active: bool = False
) -> tuple[Probe, ...]:
    """The probes to run, with the profile's thresholds. What the command line names in `only` replaces the profile's
    choice; `skip` adds to it. `where`: the profile's origin, for errors. `active`: with those that load the GPUs.
    Raises UsageError."""
    wanted = tuple(only) or profile.only
    unwanted = (*profile.skip, *skip)
    known = [probe.name for probe in (*PROBES, *ACTIVE_PROBES)]
    for name in (*wanted, *unwanted, *profile.thresholds):
        if name not in known:
            raise UsageError(f"no probe {name!r}: the probes are {', '.join(known)}")
    for name in wanted if not active else ():
        if name in ACTIVE_NAMES:
            raise UsageError(f"probe {name} loads the GPUs: say --active as well")
    runnable = (*PROBES, *ACTIVE_PROBES) if active else PROBES
    chosen = [probe for probe in runnable if probe.name not in unwanted and (not wanted or probe.name in wanted)]
    if not chosen:
        raise UsageError("no probe is left to run: name fewer in --skip or others in --only")
    return tuple(_adjusted(probe, profile.thresholds.get(probe.name, {}), where) for probe in chosen)


def _adjusted(probe: Probe, changes: dict[str, Any], where: str) -> Probe:
    try:
        changed = msgspec.convert({**msgspec.to_builtins(probe.thresholds), **changes}, type(probe.thresholds))
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("Object contains unknown field", "unknown key")
        raise UsageError(f"{where}: thresholds.{probe.name}: {text}") from None
    return probe._replace(thresholds=changed)
