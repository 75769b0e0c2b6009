"""The question that SLURM's prolog asks this node's agent: which probes, with which thresholds, of which laggard.

Gate and agent compute the same text from their own code. Where the two differ in anything that could change the answer,
the texts differ, and the agent's report stands for nothing.
"""

from __future__ import annotations

import msgspec

from laggard import __version__
from laggard.probes.choose import choose_probes
from laggard.probes.gate_question import PROFILE, gate_profile
from laggard.probes.probe import Probe


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
