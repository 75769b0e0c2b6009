"""Profiles of the gate: which probes run, for how long, and how strictly they are judged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from laggard.config import Settings, load, yaml_message
from laggard.errors import UsageError
from laggard.probes.groups import ACTIVE
from laggard.probes.probe import Probe
from laggard.probes.registry import PROBES

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Profile(Settings, frozen=True):
    """The content of the FILE of `--profile`. An empty file is the profile `full`."""

    deadline_seconds: Seconds = 30.0
    """The time for all probes together. Each probe also has a shorter deadline of its own."""

    only: tuple[str, ...] = ()
    """The probes to run; all where none is named."""

    skip: tuple[str, ...] = ()
    """Probes that are not run."""

    warnings_fail: bool = False
    """True: a warning fails the gate, as a critical finding does."""

    unknown: Literal["unknown", "fail"] = "unknown"
    """The meaning of the verdict `unknown`: exit status 2, or 1 with `fail`. It can never become 0."""

    thresholds: dict[str, dict[str, Any]] = {}
    """The thresholds to change, by probe."""

    active: bool = False
    """Also run the probes that load the GPUs, as `--active` does. A daemon never does, whatever its profile says."""

    active_deadline_seconds: Seconds = 240.0
    """The time for all active probes together."""

    agent_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The gate takes a report of this node's agent up to this age instead of running the probes; 0 means never."""


class Expectations(Settings, frozen=True):
    """The content of the FILE of `--expect`: thresholds by probe with the values of this cluster. They override the
    profile's."""

    thresholds: dict[str, dict[str, Any]] = {}
    """The thresholds to change, by probe."""


AGENT_SECONDS: Final = 90.0
"""The largest age of an agent's report that is used. The agent runs its probes each minute, for at most ten seconds. An
older report has missed a round."""

DEFAULT: Final = "full"

# Each profile states what the verdict `unknown` becomes. By itself it is exit status 2. SLURM, which drains on any
# status but 0, never gets it (--gate): a check that cannot run must not empty a cluster. It is reported and logged, and
# exported by the agent.
PROFILES: Final[Mapping[str, Profile]] = {
    # A job waits for it: SLURM's PrologTimeout is the limit, and how long people are willing to wait.
    "prolog": Profile(
        deadline_seconds=5.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"gpu_busy": {"idle_expected": True}},
    ),
    # The agent may not have seen yet what the job just broke: the gate runs the probes itself.
    "epilog": Profile(deadline_seconds=5.0, unknown="unknown"),
    # Started by a timer or a daemon, whose own limits (ulimit) are not those of a job.
    "periodic": Profile(
        deadline_seconds=10.0,
        unknown="unknown",
        agent_seconds=AGENT_SECONDS,
        thresholds={"limits": {"memlock_own_severity": "warning"}},
    ),
    "full": Profile(unknown="unknown"),
}


def find_profile(name: str) -> Profile:
    """The profile called `name`, or the one in the file `name`. Raises UsageError."""
    if name in PROFILES:
        return PROFILES[name]
    if not os.path.exists(name):
        raise UsageError(f"no profile {name!r}: name one of {', '.join(PROFILES)}, or the path of a YAML file")
    return load(name, Profile, "--profile")


def with_expectations(profile: Profile, path: str) -> Profile:
    """`profile` with the thresholds of the file at `path`, which override its own. Raises UsageError."""
    expected = load(path, Expectations, "--expect").thresholds
    merged = {name: {**profile.thresholds.get(name, {}), **values} for name, values in expected.items()}
    return msgspec.structs.replace(profile, thresholds={**profile.thresholds, **merged})


def choose_probes(
    profile: Profile, only: Iterable[str], skip: Iterable[str], where: str, active: bool = False
) -> tuple[Probe, ...]:
    """The probes to run, with the profile's thresholds. `only` of the command line replaces the profile's `only`;
    `skip` adds to the profile's `skip`. `where` names the profile in error messages. `active`: also the probes that
    load the GPUs. Raises UsageError."""
    wanted = tuple(only) or profile.only
    unwanted = (*profile.skip, *skip)
    passive_names = [probe.name for probe in PROBES]
    others = [name for name in (*wanted, *unwanted, *profile.thresholds) if name not in passive_names]
    active_probes = _active_probes() if active or others else ()
    known = [*passive_names, *(probe.name for probe in active_probes)]
    for name in others:
        if name not in known:
            raise UsageError(f"no probe {name!r}: the probes are {', '.join(known)}")
        if name in wanted and not active:
            raise UsageError(f"probe {name} loads the GPUs: add --active")
    runnable = (*PROBES, *active_probes) if active else PROBES
    chosen = [probe for probe in runnable if probe.name not in unwanted and (not wanted or probe.name in wanted)]
    if not chosen:
        raise UsageError("no probe is left to run: name fewer in --skip or others in --only")
    return tuple(_with_thresholds(probe, profile.thresholds.get(probe.name, {}), where) for probe in chosen)


def is_active(probe: Probe) -> bool:
    """Whether the probe loads the GPUs."""
    return probe.group is ACTIVE


def _active_probes() -> tuple[Probe, ...]:
    from laggard.probes.active_registry import ACTIVE_PROBES  # most gates run none of them, and start sooner without

    return ACTIVE_PROBES


def _with_thresholds(probe: Probe, changes: dict[str, Any], where: str) -> Probe:
    try:
        changed = msgspec.convert({**msgspec.to_builtins(probe.thresholds), **changes}, type(probe.thresholds))
    except msgspec.ValidationError as error:
        text = yaml_message(str(error), probe.thresholds.__struct_fields__)
        raise UsageError(f"{where}: thresholds.{probe.name}: {text}") from None
    return probe._replace(thresholds=changed)
