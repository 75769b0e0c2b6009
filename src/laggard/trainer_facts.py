"""Names of what a training process tells of itself in its rank file's facts. Standard library only."""

from __future__ import annotations

from typing import Final

TRANSPORT: Final = "transport"
"""How its NCCL talks: what laggard.probes.nccl_transport.Transport writes, as JSON's values."""
