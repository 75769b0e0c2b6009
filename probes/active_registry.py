"""Lists the probes that load the GPUs. They stand apart from the others, so that a gate that does not run them starts
without importing them."""

from __future__ import annotations

from typing import Final

from laggard.probes.active import copy, matmul, memory
from laggard.probes.probe import Probe

ACTIVE_PROBES: Final[tuple[Probe, ...]] = (
    matmul.PROBE,
    memory.PROBE,
    copy.PROBE,
)
"""The probes that load the GPUs. They run only when asked for, and never on a GPU that is in use."""
