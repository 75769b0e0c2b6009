"""The probes that a profile chooses, with its thresholds. Loads every probe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from laggard import __version__
from laggard.kit.config import yaml_message
from laggard.kit.errors import UsageError
from laggard.probes.host.host import Host
from laggard.probes.probe import ACTIVE, ACTIVE_PREFIX, Probe
from laggard.probes.profiles import PROFILE, Profile, for_node, gate_profile
from laggard.probes.registry import PROBES


def choose_probes(
    profile: Profile, only: Iterable[str], skip: Iterable[str], where: str, active: Sequence[Probe] = (), node: str = ""
) -> tuple[Probe, ...]:
    """The probes to run, with the profile's thresholds. `only` of the command line replaces the profile's `only`;
    `skip` adds to the profile's `skip`. `where` names the profile in error messages. `active`: the probes that load the
    GPUs, where they are to run; `node`: the name of the node, this one's by default. Raises UsageError."""
    wanted = tuple(only) or profile.only
    unwanted = (*profile.skip, *skip)
    thresholds = for_node(profile, node or Host().node()) if profile.nodes else profile.thresholds
    runnable = (*PROBES, *active)
    known = [probe.name for probe in runnable]
    for name in (*wanted, *unwanted, *thresholds):
        if name not in known and (active or not name.startswith(ACTIVE_PREFIX)):
            raise UsageError(f"no probe {name!r}: the probes are {', '.join(known)}")
        if name in wanted and name not in known:
            raise UsageError(f"probe {name} loads the GPUs: add --active")
    chosen = [probe for probe in runnable if probe.name not in unwanted and (not wanted or probe.name in wanted)]
    if not chosen:
        raise UsageError("no probe is left to run: name fewer in --skip or others in --only")
    return tuple(_with_thresholds(probe, thresholds.get(probe.name, {}), where) for probe in chosen)


def is_active(probe: Probe) -> bool:
    """Whether the probe loads the GPUs."""
    return probe.group is ACTIVE


def _with_thresholds(probe: Probe, changes: dict[str, Any], where: str) -> Probe:
    try:
        changed = msgspec.convert({**msgspec.to_builtins(probe.thresholds), **changes}, type(probe.thresholds))
    except msgspec.ValidationError as error:
        text = yaml_message(str(error), probe.thresholds.__struct_fields__)
        raise UsageError(f"{where}: thresholds.{probe.name}: {text}") from None
    return probe._replace(thresholds=changed)


# The question that SLURM's prolog asks this node's agent: which probes, with which thresholds, of which laggard.
#
# Gate and agent compute the same text from their own code. Where the two differ in anything that could change the
# answer, the texts differ, and the agent's report stands for nothing.


def gate_probes() -> tuple[Probe, ...]:
    """The probes of the gate's profile, with its thresholds."""
    return choose_probes(gate_profile(), (), (), PROFILE)


def fingerprint(node: str) -> str:
    """32 hexadecimal digits of what a prolog of this laggard asks about `node`."""
    from hashlib import sha256  # loads OpenSSL: the gate needs it once an hour

    profile = gate_profile()
    asked = [
        __version__,
        node,
        msgspec.to_builtins(profile),
        [[probe.name, msgspec.to_builtins(probe.thresholds)] for probe in gate_probes()],
    ]
    return sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:32]
