"""The gate's own variants of probes: those that a prolog judges otherwise than the agent does, or that the agent does
not run. They run in the agent's rounds under a name of their own, so that the agent knows what a prolog would find."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.agent.prober.variants import PREFIX, KnownProbes
from laggard.probes.choose import fingerprint, gate_probes
from laggard.probes.probe import Probe


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
