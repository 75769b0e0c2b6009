"""The probes that load the GPUs. They run only when asked for, and never on a GPU that is in use: no daemon holds their
code."""

from __future__ import annotations

from typing import Final

from laggard.probes.active import copy, matmul
from laggard.probes.probe import Probe

ACTIVE_PROBES: Final[tuple[Probe, ...]] = (matmul.PROBE, *copy.PROBES)
