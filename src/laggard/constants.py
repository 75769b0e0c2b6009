"""Constants that more than one part of laggard uses. Standard library only: the training process imports this."""

from __future__ import annotations

from typing import Final

PHASES: Final = ("input", "forward", "backward", "optimizer", "other")
"""What a rank's own time in a step is split into; `other` is what no phase claims (logging, evaluation)."""


OPS: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "gather",
    "scatter",
)


AGENT_PORT: Final = 19400


COLLECTOR_PORT: Final = 19401
