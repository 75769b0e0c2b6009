"""What an agent knows of the probes: `python -m laggard.agent.prober.known PROFILE NODE` writes it, for an agent that
holds the code of none.

The gate's own variants of probes are those that a prolog judges otherwise than the agent does, or that the agent does
not run. They run in the agent's rounds under a name of their own, so that the agent knows what a prolog would find.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from laggard.agent.prober.process import PREFIX, KnownProbes, Refused
from laggard.kit.errors import UsageError
from laggard.probes.choose import choose_probes, fingerprint, gate_probes
from laggard.probes.probe import Probe
from laggard.probes.profiles import find_profile
from laggard.wire import encode


def stricter_probes(probes: Iterable[Probe]) -> tuple[Probe, ...]:
    """The variants that an agent needs whose own probes are `probes`."""
    own = {probe.name: probe.thresholds for probe in probes}
    return tuple(
        probe._replace(name=PREFIX + probe.name) for probe in gate_probes() if own.get(probe.name) != probe.thresholds
    )


def variant_names(probes: Iterable[Probe]) -> frozenset[str]:
    """Their names, as the gate has them."""
    return frozenset(probe.name.removeprefix(PREFIX) for probe in stricter_probes(probes))


def known_by(probes: Iterable[Probe], node: str) -> KnownProbes:
    """What an agent knows on `node` whose own probes are `probes`."""
    gate = frozenset(probe.name for probe in gate_probes())
    return KnownProbes(fingerprint(node), gate, variant_names(probes))


def main(profile: str, node: str) -> None:
    """Writes what an agent with `profile` (a name or a path) knows on `node`, or why `profile` cannot be used."""
    answer: KnownProbes | Refused
    try:
        answer = known_by(choose_probes(find_profile(profile), (), (), f"profile {profile}"), node)
    except UsageError as error:
        answer = Refused(str(error))
    sys.stdout.buffer.write(encode(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
