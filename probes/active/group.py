"""The probes that load the GPUs share one process: they run one after the other, and torch is imported once."""

from __future__ import annotations

from typing import Final

from laggard.probes.probe import ProbeGroup

ACTIVE: Final = ProbeGroup("active", 120.0)
"""torch is imported from a slow file system, eight GPUs are started, and each is loaded for two seconds."""
