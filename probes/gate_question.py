"""The names that gate and agent have for the question of SLURM's prolog, and its profile; which probes it asks for,
gate_probes.py says."""

from __future__ import annotations

from typing import Final

from laggard.probes.profiles import PROFILES, Profile

SCHEMA: Final = "gate/1"
PROFILE: Final = "prolog"


def gate_profile() -> Profile:
    return PROFILES[PROFILE]
