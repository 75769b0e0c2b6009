"""Constants that several parts of laggard use. Standard library only: the training process imports this."""

from __future__ import annotations

from typing import Final

PHASES: Final = ("input", "forward", "backward", "optimizer", "other")
"""The phases of a step: parts of a rank's own time. `other` is what belongs to no other phase (logging, evaluation)."""

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
"""The operations of collectives, with send and recv, as the rank file, the recording and the documents name them."""

AGENT_PORT: Final = 19400

COLLECTOR_PORT: Final = 19401

CONTROLLER_PORT: Final = 19402
"""Of `laggard kubernetes controller`."""
