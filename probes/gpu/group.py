"""The probes that ask NVML share one process: NVML is started and read once."""

from __future__ import annotations

from typing import Final

from laggard.probes.probe import ProbeGroup

GPU: Final = ProbeGroup("gpu", 29.5)
"""Eight GPUs without persistence mode take up to 27 s to start; profiles and hangs end it earlier."""
