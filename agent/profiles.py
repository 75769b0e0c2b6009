"""Profiles of the gate: which probes, how long, and how strictly what they say is taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from laggard.config import Settings, load
from laggard.errors import UsageError
from laggard.probes.registry import PROBES
from laggard.probes.shape import Probe

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


DEFAULT: Final = "full"

PROFILES: Final[Mapping[str, Profile]] = {
    # A job waits: SLURM's PrologTimeout and people's patience are the limits.
    "prolog": Profile(deadline_seconds=5.0),
    "epilog": Profile(deadline_seconds=5.0),
    # Run by a timer or a daemon, whose own limits are not those of a job.
    "periodic": Profile(deadline_seconds=10.0, thresholds={"limits": {"memlock_own_severity": "warning"}}),
    "full": Profile(),
}


def find_profile(name: str) -> Profile:
    """The profile of that name, or in that file. Raises UsageError."""
    if name in PROFILES:
        return PROFILES[name]
    if not os.path.exists(name):
        raise UsageError(f"no profile {name!r}: say {', '.join(PROFILES)}, or the path of a YAML file")
    return load(name, Profile)


def choose(profile: Profile, only: Iterable[str], skip: Iterable[str], where: str) -> tuple[Probe, ...]:
    """The probes to run, with the profile's thresholds. What the command line names in `only` replaces the profile's
    choice; `skip` adds to it. `where`: the profile's origin, for errors. Raises UsageError."""
    wanted = tuple(only) or profile.only
    unwanted = (*profile.skip, *skip)
    known = [probe.name for probe in PROBES]
    for name in (*wanted, *unwanted, *profile.thresholds):
        if name not in known:
            raise UsageError(f"no probe {name!r}: the probes are {', '.join(known)}")
    chosen = [probe for probe in PROBES if probe.name not in unwanted and (not wanted or probe.name in wanted)]
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
